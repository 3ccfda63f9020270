"""A program that follows the changes of a service with Spark into files or into Delta, until it is killed.

    python -m tests.support.apps.following SERVICE SERVERS DIRECTORY parquet|delta [once]

With `once` it ends when it has all changes, and prints what the table holds as JSON lines.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from statehold.spark import StateholdSource

DELTA = "io.delta:delta-spark_2.13:4.0.0"


def session(form: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("following").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    if form == "delta":
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "statehold" / "ivy"
        builder = (
            builder.config("spark.jars.packages", DELTA)
            .config("spark.jars.ivy", str(cache))
            .config("spark.databricks.delta.snapshotPartitions", "2")
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        )
    return builder.getOrCreate()


def main(service: str, servers: str, directory: str, form: str, *once: str) -> None:
    spark = session(form)
    spark.dataSource.register(StateholdSource)
    options = {"service": service, "table": "totals", "mode": "changes", "kafka.bootstrap_servers": servers}
    changes = spark.readStream.format("statehold").options(**options).load()
    query = (
        changes.writeStream.format(form)
        .option("path", f"{directory}/table")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .start()
    )
    if not once:
        query.awaitTermination()
    query.processAllAvailable()
    query.stop()
    for row in spark.read.format(form).load(f"{directory}/table").collect():
        print("row", msgspec.json.encode(row.asDict(recursive=True)).decode())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
