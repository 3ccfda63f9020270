"""Writes the state at the end of a day into the lake: `python -m examples.lakehouse.nightly SERVICE TABLE`.

One commit of the lake replaces the rows of that day, so a run that was killed wrote nothing, and a second run of a
day leaves the same rows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from examples.lakehouse.evolution import TypeChanged
from examples.lakehouse.lake import Lake, options


def end_of(day: date) -> str:
    """Return the end of a day in UTC. :raises ValueError: it is not over."""
    end = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
    if end > datetime.now(UTC):
        raise ValueError(f"{day} is not over")
    return end.isoformat()


def write(spark: SparkSession, lake: Lake, service: str, table: str, into: str, day: date, at: str) -> None:
    """Replace the rows of `day` by those of the table at the point `at`. :raises ValueError: it has a column `day`."""
    state = spark.read.format("statehold").options(service=service, table=table, at=at).load()
    if "day" in map(str.lower, state.columns):
        raise ValueError(f"table {table} has a column day. Next: give the job's own another name in this file")
    rows = lake.fitted(state.withColumn("day", f.lit(day)), into, partitioned_by="day")
    rows.writeTo(lake.table(into)).overwrite(f.col("day") == f.lit(day))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job. Its exit code is 1 if nothing was written."""
    parser = options("Write the state at the end of a day into the lake.")
    parser.add_argument("--day", type=date.fromisoformat, default=datetime.now(UTC).date() - timedelta(days=1))
    parser.add_argument("--at", help="another point than the day's end, such as latest")
    given = parser.parse_args(arguments)
    lake = Lake(given.lake, given.to)
    try:
        at = given.at or end_of(given.day)
        spark = lake.session("nightly", given.spark_master)
        write(spark, lake, given.service, given.table, given.into or given.table, given.day, at)
    except (PySparkException, TypeChanged, ValueError) as error:
        sys.exit(f"nightly: {error}")


if __name__ == "__main__":
    main()
