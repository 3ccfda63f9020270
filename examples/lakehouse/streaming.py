"""Appends the changes of a table to the lake, each once: `python -m examples.lakehouse.streaming SERVICE TABLE`.

Spark repeats a batch whose end it has not noted in the checkpoint. Delta and Iceberg keep the number of the last batch
with its rows, and skip one that they have. So table and checkpoint belong together: delete both, or neither.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.lakehouse.evolution import TypeChanged
from examples.lakehouse.lake import Lake, options


def follow(
    spark: SparkSession, lake: Lake, service: str, table: str, into: str, *, once: bool = False
) -> StreamingQuery:
    """Start the stream of changes into the lake. `once`: it ends after the changes that are stored now."""
    reader = spark.readStream.format("statehold").options(service=service, table=table, mode="changes")
    changes = lake.fitted(reader.load(), into)
    writer = changes.writeStream.format(lake.form).outputMode("append")
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="10 seconds")
    writer = writer.option("checkpointLocation", str((lake.directory / f"{into}.checkpoint").resolve()))
    if lake.form == "delta":
        return writer.start(str((lake.directory / into).resolve()))
    return writer.toTable(lake.table(into))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job until it is stopped or fails; then start it again."""
    parser = options("Append the changes of a table to the lake, each once.")
    parser.add_argument("--once", action="store_true", help="end after the changes that are stored now")
    given = parser.parse_args(arguments)
    lake = Lake(given.lake, given.to)
    into = given.into or f"{given.table}_changes"
    try:
        spark = lake.session("streaming", given.spark_master)
        # because Spark may end after a batch that it repeats, before the newer changes, once is two rounds
        for _ in range(2 if given.once else 1):
            follow(spark, lake, given.service, given.table, into, once=given.once).awaitTermination()
    except (PySparkException, TypeChanged) as error:
        sys.exit(f"streaming: {error}")


if __name__ == "__main__":
    main()
