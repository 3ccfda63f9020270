"""`holdfast snapshot export`: the state at a position as typed tables (M1). No state comes to the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from holdfast.config.settings import Settings
from holdfast.errors import DigestMismatch, PartitionError, UsageError
from holdfast.ports import Reader
from holdfast.snapshot import digest
from holdfast.snapshot.last import last_mark
from holdfast.snapshot.look import fulls, past
from holdfast.snapshot.place import Place
from holdfast.snapshot.records import Mark
from holdfast.snapshot.spark import plan as planning
from holdfast.snapshot.spark import source
from holdfast.snapshot.spark.columns import Columns
from holdfast.snapshot.spark.plan import Plan
from holdfast.snapshot.spark.source import Fold, JobFailed, collect, state_at
from holdfast.table import Table
from holdfast.version import __version__

Form = Literal["parquet", "jsonl"]
#: written last: a directory without it is no whole export
SUMMARY: Final = "export.json"


class Exported(msgspec.Struct, frozen=True):
    """One partition: where its state really is, which may be before what was asked for."""

    partition: int
    asked: int | None
    position: int
    n: int
    keys: int
    digest: str
    lineage: str
    #: of who wrote the mark: milliseconds since 1970
    time: int


class Export(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    input: str
    format: str
    partitions: list[Exported]
    #: table -> column -> Spark's type
    tables: dict[str, dict[str, str]]
    #: table -> rows
    rows: dict[str, int]
    holdfast: str = __version__
    made: str


def export(
    spark: SparkSession,
    settings: Settings,
    reader: Reader,
    places: Sequence[Place],
    positions: Mapping[int, int],
    tables: Sequence[Table[Any, Any]],
    to: Path,
    form: Form = "parquet",
) -> Export:
    """Write each table to `to`/TABLE, prove the state first, count the rows after.

    `positions`: partition -> the position of the input not to go beyond; absent: the newest state. Rounds down to a
    mark with a delta. Reads the topics once for the proof and once more for each table.

    :raises UsageError: `to` is not empty, or a position is not kept: the message says which ones are.
    :raises DigestMismatch: what Spark folds is not what the worker wrote. :raises JobFailed: Spark failed.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"{to} is not empty; name a new directory for each export")
    plans, fold = _proven(spark, settings, reader, places, positions)
    to.mkdir(parents=True, exist_ok=True)
    spark.conf.set("spark.sql.caseSensitive", "true")  # fields may differ in nothing else
    columns = [Columns(table) for table in tables]
    rows = {each.name: _write(spark, fold, each, to.resolve() / each.name, form) for each in columns}
    wanted = sum(each.goal.mark.keys for each in plans)
    if sum(rows.values()) != wanted:
        raise UsageError(
            f"{to} holds {sum(rows.values())} rows, the marks tell of {wanted} keys: does this code declare all tables?"
        )
    done = Export(
        service=places[0].names.group,
        input=places[0].input,
        format=form,
        partitions=[_exported(each, positions) for each in plans],
        tables={each.name: {field.name: field.dataType.simpleString() for field in each.schema} for each in columns},
        rows=rows,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    (to / SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(done), indent=1) + b"\n")
    return done


def _exported(plan: Plan, positions: Mapping[int, int]) -> Exported:
    mark = plan.goal.mark
    return Exported(
        plan.partition,
        positions.get(plan.partition),
        mark.positions[plan.place.input],
        mark.n,
        mark.keys,
        digest.show(mark.digest),
        mark.lineage,
        mark.time,
    )


def _proven(
    spark: SparkSession,
    settings: Settings,
    reader: Reader,
    places: Sequence[Place],
    positions: Mapping[int, int],
) -> tuple[list[Plan], Fold]:
    """Plans whose fold has the digest of its mark; a base that turns out damaged is left for an older one."""
    damaged: dict[int, set[int]] = {place.partition: set() for place in places}
    while True:
        plans = [_plan(reader, place, positions.get(place.partition), damaged[place.partition]) for place in places]
        fold = state_at(spark, settings, plans)
        wrong = {partition: finding for partition, finding in fold.check().items() if finding}
        if not wrong:
            return plans, fold
        for plan in plans:
            finding = wrong.get(plan.partition, "")
            if not finding:
                continue
            if plan.base is None or not finding.startswith(f"full@{plan.base.offset}:"):
                raise _refused(reader, plan, finding, positions.get(plan.partition))
            damaged[plan.partition].add(plan.base.offset)


def _plan(reader: Reader, place: Place, position: int | None, damaged: set[int]) -> Plan:
    def inside(mark: Mark) -> bool:
        return position is None or mark.positions[place.input] <= position

    try:
        return planning.make(reader, place, None if position is None else inside, damaged)
    except PartitionError as error:
        if position is None:
            raise
        raise UsageError(
            f"{place.input}[{place.partition}]: {position} is not kept: {_reach(reader, place)}"
        ) from error


def _refused(reader: Reader, plan: Plan, finding: str, position: int | None) -> Exception:
    place = plan.place
    if plan.base is None and position is not None:
        return UsageError(
            f"{place.input}[{plan.partition}]: {position} is not kept: {_reach(reader, place)} ({finding})"
        )
    return DigestMismatch(
        f"the state cannot be proven: {finding}; `holdfast snapshot verify` tells where it begins to differ",
        topic=place.input,
        partition=plan.partition,
        position=plan.goal.mark.positions[place.input],
    )


def _reach(reader: Reader, place: Place) -> str:
    """Which positions have a state."""
    last = last_mark(reader, place.names.increment, place.partition)
    assert last is not None
    kept = [
        each.manifest.positions[place.input]
        for each in fulls.find(reader, place, last)
        if each.manifest is not None and not each.finding
    ]
    first = next(past.increments(reader, place), None)
    if first is not None and (first.mark.n == 0 or first.adopt is not None):
        kept.append(first.mark.positions[place.input])
    if not kept:
        return "no usable full is there, and the deltas do not begin with the first"
    return f"the positions that have a state are {min(kept)} to {last.positions[place.input]}"


def _write(spark: SparkSession, fold: Fold, columns: Columns, to: Path, form: Form) -> int:
    """Write one table; how many rows are in the files."""
    rows = fold.state.where(F.col("table") == columns.name).select("partition", "key", "value")
    typed = rows.mapInArrow(columns, columns.schema)
    try:
        if form == "parquet":
            typed.write.parquet(f"file://{to}")
        else:
            typed.write.json(f"file://{to}", ignoreNullFields=False)
    except PySparkException as error:
        raise JobFailed(f"the Spark job failed: {source._cause(str(error))}") from error
    return _count(spark, columns, to, form)


def _count(spark: SparkSession, columns: Columns, to: Path, form: Form) -> int:
    read = spark.read.schema(columns.schema)
    found: DataFrame = read.parquet(f"file://{to}") if form == "parquet" else read.json(f"file://{to}")
    (row,) = collect(found.agg(F.count("partition").alias("rows")))
    return int(row["rows"])
