"""A program that follows the changes of a service with Spark into files, until it is killed.

    python -m tests.support.apps.following SERVICE SERVERS DIRECTORY [once]

With `once` it ends when it has all changes, and prints what the table holds as JSON lines.
"""

from __future__ import annotations

import os
import sys

import msgspec
from pyspark.sql import SparkSession

from statehold.spark import StateholdSource


def session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("following").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.session.timeZone", "UTC")
    return builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()


def main(service: str, servers: str, directory: str, *once: str) -> None:
    spark = session()
    spark.dataSource.register(StateholdSource)
    options = {"service": service, "table": "totals", "mode": "changes", "kafka.bootstrap_servers": servers}
    changes = spark.readStream.format("statehold").options(**options).load()
    query = (
        changes.writeStream.format("parquet")
        .option("path", f"{directory}/table")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .start()
    )
    if not once:
        query.awaitTermination()
    query.processAllAvailable()
    query.stop()
    for row in spark.read.parquet(f"{directory}/table").collect():
        print("row", msgspec.json.encode(row.asDict(recursive=True)).decode())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
