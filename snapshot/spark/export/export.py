"""`statehold snapshot export`: writes the state at a position as typed tables (M1), without driver memory."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from statehold.common.version import __version__
from statehold.errors import DamagedIncrement, DigestMismatch, ToolRefused, UsageError
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.spark.export import point_in_time
from statehold.snapshot.spark.export.columns import Columns, Untyped
from statehold.snapshot.spark.export.point_in_time import LATEST, OutOfReach, PointInTime
from statehold.snapshot.spark.fold import plan as planning
from statehold.snapshot.spark.fold.merge import Rows
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.io import source
from statehold.snapshot.spark.io.scan import ReaderOf
from statehold.snapshot.spark.io.source import Fold, JobFailed, collect
from statehold.state import digest
from statehold.state.partition_table import PartitionTable
from statehold.telemetry.log_events import Log

Form = Literal["parquet", "jsonl"]
#: File that describes the export.
SUMMARY: Final = "export.json"
#: Attempts to read a state that a live service changes.
_ATTEMPTS: Final = 4
#: Format with microseconds, which Spark's default omits.
_MICROSECONDS: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"


class Exported(msgspec.Struct, frozen=True):
    """Result for one partition; its actual position may be lower than the requested one."""

    partition: int
    asked: str
    position: int
    n: int
    keys: int
    digest: str
    lineage: str
    #: LogAppendTime of the commit record.
    time: str


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """Description of the export, written to `export.json`."""

    service: str
    #: Several with commas between.
    input: str
    format: str
    partitions: list[Exported]
    #: Table -> column -> Spark's type.
    tables: dict[str, dict[str, str]]
    #: Table -> number of rows.
    rows: dict[str, int]
    statehold: str = __version__
    made: str


def export(
    spark: SparkSession,
    reader_of: ReaderOf,
    reader: Reader,
    places: Sequence[Place],
    points: Mapping[int, PointInTime],
    tables: Sequence[PartitionTable[Any, Any]],
    to: Path,
    form: Form = "parquet",
) -> Export:
    """Verify the state, write each table to `to`/TABLE and count the rows. `to` appears atomically.

    `points` maps a partition to its point in time; the default is the newest state. The state is rounded down to a
    commit record with a delta. The topics are read once. Tables outside `tables` get JSON for key and value. A read
    that fails is repeated; a damaged full snapshot is replaced by an older one.

    :raises UsageError: `to` is not empty. :raises ToolRefused: a state is not stored; the text says which ones are.
    :raises DigestMismatch: the folded state differs from the recorded one. :raises JobFailed: Spark failed.
    """
    fresh(to)
    spark.conf.set("spark.sql.caseSensitive", "true")  # because field names may differ in case only
    spark.conf.set("spark.sql.parquet.compression.codec", "zstd")
    damaged: dict[int, set[int]] = {place.partition: set() for place in places}
    share, attempt, plans = source.pieces(spark, len(places)), 1, list[FoldPlan]()
    while True:
        try:
            plans = plan(reader, places, points, damaged)
            fold = Fold(spark, reader_of, [planning.divided(reader, each, share) for each in plans])
            with fold.kept() as state, _work_directory(to) as work:
                held = _proven(fold, state, damaged)
                if held is None:
                    continue
                done = _written(spark, reader, fold, state, held, points, tables, work, form)
                _publish(work, to)
                return done
        except (JobFailed, DamagedIncrement, OutOfRange) as error:
            if attempt == _ATTEMPTS or not _may_succeed(error):
                raise
            attempt += 1
            log = Log(service=places[0].names.group)
            log.warning("kafka_retry", doing="export the state", attempt=attempt, cause=str(error))


def _may_succeed(error: Exception) -> bool:
    """Return whether another attempt may succeed: a read failed, or the service truncated its topics meanwhile."""
    return error.reading if isinstance(error, JobFailed) else isinstance(error.__cause__ or error, OutOfRange)


def _written(
    spark: SparkSession,
    reader: Reader,
    fold: Fold,
    state: RDD[Rows],
    held: Mapping[str, int],
    points: Mapping[int, PointInTime],
    tables: Sequence[PartitionTable[Any, Any]],
    work: Path,
    form: Form,
) -> Export:
    """Write the verified state, whose tables have `held` keys, and its description to the directory `work`."""
    columns, plans = _columns(tables, held), list(fold.plans.values())
    rows = {each.name: _write(spark, fold.state(state, each.name), each, work / each.name, form) for each in columns}
    if {name: count for name, count in rows.items() if count} != held:
        raise ToolRefused(f"{work}: write the tables: {rows} rows for {held} keys. The files were removed")
    place = plans[0].place
    done = Export(
        service=place.names.group,
        input=",".join(place.names.inputs),
        format=form,
        partitions=[exported(reader, each, points) for each in plans],
        tables={each.name: {field.name: field.dataType.simpleString() for field in each.schema} for each in columns},
        rows=rows,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    (work / SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(done), indent=1) + b"\n")
    return done


def plan(
    reader: Reader,
    places: Sequence[Place],
    points: Mapping[int, PointInTime],
    damaged: Mapping[int, Collection[int]] | None = None,
) -> list[FoldPlan]:
    """FoldPlan the state of each partition. Needs no Spark, so missing states are reported at once.

    :raises ToolRefused: some points in time are older than the stored states; the text lists those by partition.
    """
    plans, missing = [], []
    for place in places:
        wanted = points.get(place.partition, LATEST)
        try:
            plans.append(point_in_time.plan(reader, place, wanted, (damaged or {}).get(place.partition, ())))
        except OutOfReach as error:
            missing.append(str(error))
    if missing:
        raise ToolRefused("; ".join(missing))
    return plans


def fresh(to: Path) -> None:
    """:raises UsageError: the directory is not empty."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(f"{to} is not empty. Next: choose a new directory for each export")


@contextmanager
def _work_directory(to: Path) -> Iterator[Path]:
    """Create a temporary directory next to `to`, which the caller renames. Remove it afterwards in every case."""
    place = to.absolute()
    place.parent.mkdir(parents=True, exist_ok=True)
    work = place.parent / f".{place.name}.{uuid.uuid4().hex[:8]}"
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _publish(work: Path, to: Path) -> None:
    try:
        work.rename(to.absolute())
    except OSError as error:
        raise ToolRefused(f"{to}: rename the finished export: {error}. The files were removed") from error


def _columns(tables: Sequence[PartitionTable[Any, Any]], held: Mapping[str, int]) -> list[Columns | Untyped]:
    known = {table.name: Columns(table) for table in tables}
    others = [Untyped(name) for name in sorted(held) if name not in known]
    for each in others:
        if not all(part.isidentifier() for part in each.name.split(".")):  # statehold's own tables have dots
            raise ToolRefused(f"table {each.name!r}: export it: its name is not valid for a directory")
    return [*known.values(), *others]


def exported(reader: Reader, plan: FoldPlan, points: Mapping[int, PointInTime]) -> Exported:
    commit_record, place = plan.goal.commit_record, plan.place
    return Exported(
        plan.partition,
        points.get(plan.partition, LATEST).asked,
        commit_record.position(place.input),
        commit_record.n,
        commit_record.keys,
        digest.show(commit_record.digest),
        commit_record.lineage,
        point_in_time.reported_time(point_in_time.time_of(reader, place, plan.goal)),
    )


def _proven(fold: Fold, state: RDD[Rows], damaged: Mapping[int, set[int]]) -> dict[str, int] | None:
    """Return table -> number of keys of the verified fold; None if a full snapshot is damaged: plan again.

    :raises DigestMismatch: the state differs, and another full snapshot would not help.
    :raises JobFailed, DamagedIncrement: as `Fold.check`.
    """
    findings, held = fold.check(state)
    wrong = {partition: finding for partition, finding in findings.items() if finding}
    for partition, finding in wrong.items():
        plan = fold.plans[partition]
        if plan.base is None or not finding.startswith(f"full@{plan.base.offset}:"):
            raise DigestMismatch(
                f"verify the folded state: {finding}. Next: run `statehold snapshot verify`, which finds the first "
                f"difference",
                topic=plan.place.input,
                partition=partition,
                position=plan.goal.commit_record.position(plan.place.input),
            )
        damaged[partition].add(plan.base.offset)
    return None if wrong else held


def _write(spark: SparkSession, rows: DataFrame, columns: Columns | Untyped, to: Path, form: Form) -> int:
    """Write one table. Return the number of rows in its files."""
    typed = rows.select("partition", "key", "value").mapInArrow(columns, columns.schema)
    try:
        if form == "parquet":
            typed.write.parquet(f"file://{to}")
        else:
            typed.write.json(f"file://{to}", ignoreNullFields=False, timestampFormat=_MICROSECONDS)
    except (PySparkException, Py4JError) as error:
        raise source.failed_job(error) from error
    return _count(spark, columns, to, form)


def _count(spark: SparkSession, columns: Columns | Untyped, to: Path, form: Form) -> int:
    read = spark.read.schema(columns.schema)
    found: DataFrame = read.parquet(f"file://{to}") if form == "parquet" else read.json(f"file://{to}")
    (row,) = collect(found.agg(F.count("partition").alias("rows")))
    return int(row["rows"])
