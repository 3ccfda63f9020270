"""A client of Spark Connect that reads a service's tables; prints what it found as JSON: `SERVICE URL DIRECTORY`.

It has no settings of the service: those of the server count.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statehold.spark import StateholdSource, views


def error_of(action: Callable[[], Any]) -> str:
    try:
        action()
    except PySparkException as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(service: str, url: str, directory: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    spark.dataSource.register(StateholdSource)
    reader = spark.read.format("statehold").options(service=service)
    found: dict[str, Any] = {"session": type(spark).__module__, "jvm": hasattr(spark, "sparkContext")}
    found["rows"] = [row.asDict() for row in reader.options(table="totals").load().collect()]
    found["views"] = views(spark, service)
    query = "SELECT count(*) n, sum(t.sum) total FROM totals t JOIN statehold_points p ON t.partition = p.partition"
    found["sql"] = [list(row) for row in spark.sql(query).collect()]
    found["unknown"] = error_of(lambda: reader.options(table="total").load().schema)
    changes = spark.readStream.format("statehold").options(service=service, table="totals", mode="changes").load()
    writer = changes.writeStream.format("parquet").option("path", f"{directory}/table")
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()
    rows = spark.read.parquet(f"{directory}/table").select("partition", "transaction", "key").collect()
    found["changes"] = [row.asDict() for row in rows]
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
