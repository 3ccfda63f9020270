"""Temporary views of all tables of a service, for SQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from statehold.errors import UsageError
from statehold.spark.opening import NamedService
from statehold.spark.options import parse
from statehold.spark.relations import Points
from statehold.spark.source import StateholdSource

#: whether a session of PySpark 4.1 or later pushes filters
_FILTERS: Final = "spark.sql.python.filterPushdown.enabled"
#: where the session of Spark Connect is, which an installation without that extra cannot import
_CONNECT: Final = "pyspark.sql.connect."


def views(spark: SparkSession, service: str, *, at: str = "latest", prefix: str = "", **options: str) -> list[str]:
    """Register temporary views of a service for SQL; return their names.

    For each table that the handler declares there are two, called as the table and with `_changes` behind it, and for
    the service `statehold_points` and `statehold_commits`, all after `prefix`. `at` is resolved once, so that all
    tables show the same transactions. Call it again for a newer state. `options` are further options of a read. Blocks
    for some seconds. With Spark Connect the server chooses the transactions; this program imports the module, too.

    :raises UsageError: two views would have one name. Raises the errors of `load()`.
    """
    spark.dataSource.register(StateholdSource)
    common = {"service": service, "pushdown": str(spark.conf.get(_FILTERS, "false")), **options}
    named = NamedService(parse({**common, "mode": "points", "at": at}))
    remote = type(spark).__module__.startswith(_CONNECT)
    offsets = _of_server(spark, common, at) if remote else Points(named).changelog_offsets
    point = {"at": "changelog:" + ",".join(f"{partition}={end}" for partition, end in offsets.items())}
    wanted = {
        f"{prefix}statehold_points": {"mode": "points", **point},
        f"{prefix}statehold_commits": {"mode": "commits"},
    }
    for table in named.tables:
        name = prefix + table.replace(".", "_")
        for view, more in ((name, {"mode": "state"}), (f"{name}_changes", {"mode": "changes"})):
            if view in wanted:
                raise UsageError(f"two views would have the name {view!r}. Next: read one of the tables with load()")
            wanted[view] = {**more, "table": table, **point}
    for view, more in wanted.items():
        spark.read.format("statehold").options(**common, **more).load().createOrReplaceTempView(view)
    return list(wanted)


def _of_server(spark: SparkSession, common: Mapping[str, str], at: str) -> dict[int, int]:
    """Return the changelog offset after each point in the server's Kafka, whose settings may not be those from here."""
    points = spark.read.format("statehold").options(**common, mode="points", at=at).load()
    return {row["partition"]: row["changelog_offset"] for row in points.collect()}
