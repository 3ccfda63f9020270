"""The relations that a read can name by `mode`: their columns, their tasks, and the rows of a task.

A relation is made where Spark plans, and fixes what it reads: each action on a DataFrame, and each join of it with
itself, sees the same transactions. It is pickled to the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.datasource import InputPartition

from statehold.errors import ToolRefused, UsageError
from statehold.ports import Reader
from statehold.snapshot.format import recorded_types
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.spark.export.columns import Columns, Untyped, arrow_schema, partition_column
from statehold.snapshot.spark.export.export import Exported, exported, plan
from statehold.snapshot.spark.export.point_in_time import kept
from statehold.snapshot.spark.fold import plan as planning
from statehold.snapshot.spark.fold.newest import Keys
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.io.scan import ReaderOf, forget_pandas, forget_zip_finders
from statehold.spark.change_rows import ChangedKey, ChangesTask, changes_of
from statehold.spark.opening import NamedService, StoredPartitions, columns_of
from statehold.spark.pushdown import Pushed
from statehold.spark.state_rows import BATCH, StateTask, lean, rows_of, text_keys


class ReadTask(msgspec.Struct, frozen=True):
    """The part of a relation that one Spark task reads."""

    partition: int
    work: Any


def tasks_of(partition: InputPartition | None) -> Iterator[ReadTask]:
    """Yield the task of an input partition, and prepare this Python worker; PySpark reads None without partitions."""
    if partition is not None:
        forget_zip_finders()
        forget_pandas()
        yield partition.value


class Relation:
    """What the data source needs of a mode."""

    schema: spark.StructType
    tasks: Sequence[ReadTask]
    #: the type of the column `key`, if a read can leave keys out
    key_type: Any = None

    def read(self, task: ReadTask, wanted: spark.StructType, pushed: Pushed) -> Iterator[pa.RecordBatch]:
        """Yield the wanted columns of a task's rows; on an executor."""
        raise NotImplementedError


def column(name: str, kind: spark.DataType, *, nullable: bool = True) -> spark.StructField:
    return spark.StructField(name, kind, nullable=nullable)


INT, LONG, TEXT, BYTES = spark.IntegerType(), spark.LongType(), spark.StringType(), spark.BinaryType()
TIME, SWITCH = spark.TimestampType(), spark.BooleanType()


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def batch_of(rows: Sequence[Sequence[Any]], schema: spark.StructType, wanted: spark.StructType) -> pa.RecordBatch:
    """Return the wanted columns of rows that have all of them."""
    arrow, places = arrow_schema(wanted), [schema.names.index(name) for name in wanted.names]
    arrays = [pa.array([row[place] for row in rows], field.type) for place, field in zip(places, arrow, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


class StateTable(Relation):
    """One table at a point: a task for each partition."""

    def __init__(self, named: NamedService) -> None:
        """:raises ToolRefused: a point is not stored. :raises UsageError: there is no such table, or no such point.
        :raises TableTypeChanged: the code reads values of another type than those that are stored.
        """
        options = named.options
        with named.view() as view:
            places = named.places(view)
            plans = plan(view.reader, places, named.points(view, places, options.at, "at"))
        self._columns = columns_of(named, options.table, recorded(plans))
        self._reader_of: ReaderOf = named.reader_factory()
        text = text_keys(named.tables)
        self.schema, self.key_type = self._columns.schema, self._columns.key_type
        self.tasks = [
            ReadTask(each.partition, StateTask(lean(each), options.table, options.verify, text)) for each in plans
        ]

    def read(self, task: ReadTask, wanted: spark.StructType, pushed: Pushed) -> Iterator[pa.RecordBatch]:
        arrow = arrow_schema(wanted)

        def convert(keys: Keys, values: list[bytes]) -> pa.RecordBatch:
            return self._columns.batch(partition_column(task.partition, len(keys)), keys, values, arrow)

        yield from rows_of(self._reader_of, task.work, pushed.chosen, convert, pushed.sought)


def recorded(plans: Sequence[FoldPlan]) -> dict[str, str]:
    """Return the tables that have keys, with their recorded types."""
    return {name: text for each in plans for name, text in each.goal.commit_record.types.items()}


class Points(Relation):
    """The points that a read of the same options takes: their transactions, times and digests. Reads no state."""

    schema = spark.StructType(
        [
            column("partition", INT, nullable=False),
            column("asked", TEXT),
            column("transaction", LONG),
            column("position", LONG),
            column("time", TIME),
            column("keys", LONG),
            column("digest", TEXT),
            column("generation", TEXT),
            column("changelog_offset", LONG),
        ]
    )

    def __init__(self, named: NamedService) -> None:
        with named.view() as view:
            places = named.places(view)
            points = named.points(view, places, named.options.at, "at")
            plans = plan(view.reader, places, points)
            found = [exported(view.reader, each, points) for each in plans]
        ends = {each.partition: each.goal.offset + 1 for each in plans}
        self.tasks = [ReadTask(each.partition, self._row(each, ends[each.partition])) for each in found]

    @property
    def changelog_offsets(self) -> dict[int, int]:
        """The changelog offset after each point."""
        return {task.partition: task.work[-1] for task in self.tasks}

    @staticmethod
    def _row(found: Exported, end: int) -> tuple[Any, ...]:
        return (
            *(found.partition, found.asked, found.n, found.position),
            *(datetime.fromisoformat(found.time), found.keys, found.digest, found.lineage, end),
        )

    def read(self, task: ReadTask, wanted: spark.StructType, pushed: Pushed) -> Iterator[pa.RecordBatch]:
        yield batch_of([task.work], self.schema, wanted)


def changes_schema(columns: Columns | Untyped) -> spark.StructType:
    return spark.StructType(
        [
            column("partition", INT, nullable=False),
            column("transaction", LONG, nullable=False),
            column("start", LONG, nullable=False),
            column("position", LONG, nullable=False),
            column("time", TIME, nullable=False),
            column("writer", TEXT),
            column("key", columns.key.type, nullable=False),
            column("kind", TEXT, nullable=False),
            column("before", columns.value.type),
            column("after", columns.value.type),
        ]
    )


def changes_batch(
    columns: Columns | Untyped, partition: int, rows: Sequence[ChangedKey], wanted: spark.StructType
) -> pa.RecordBatch:
    """Return the wanted columns; decode nothing else."""
    arrow = arrow_schema(wanted)
    arrays = []
    for field in arrow:
        match field.name:
            case "partition":
                found: list[Any] = [partition] * len(rows)
            case "transaction":
                found = [each.transaction.n for each in rows]
            case "time":
                found = [moment(each.transaction.time) for each in rows]
            case "start" | "position" | "writer":
                found = [getattr(each.transaction, field.name) for each in rows]
            case "kind":
                found = [each.kind for each in rows]
            case _:
                try:
                    found = _converted(columns, field.name, rows)
                    arrays.append(pa.array(found, field.type))
                except Exception as error:
                    raise columns.unfit(error) from error
                continue
        arrays.append(pa.array(found, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _converted(columns: Columns | Untyped, name: str, rows: Sequence[ChangedKey]) -> list[Any]:
    if name == "key":
        return columns.keys([each.key for each in rows])
    return columns.values([each.before if name == "before" else each.after for each in rows])


class ChangesTable(Relation):
    """Every stored change of a table, or those after a point: a task for each partition.

    A begin that is not stored any more is an error of `tasks`, because a stream that continues does not need it.
    """

    def __init__(self, named: NamedService) -> None:
        """:raises ToolRefused, UsageError, TableTypeChanged: as `StateTable`."""
        options, self._unstored, self._tasks = named.options, "", list[ReadTask]()
        with named.view() as view:
            places = named.places(view)
            plans = plan(view.reader, places, named.points(view, places, options.at, "at"))
            self.columns = columns_of(named, options.table, recorded(plans))
            try:
                begins = _begins(named, view, places, plans)
            except ToolRefused as error:
                self._unstored, begins = str(error), []
        for place, begin, end in zip(places, begins, plans, strict=not self._unstored):
            found = _between(named, place, begin, end, since=bool(options.since))
            self._tasks.append(ReadTask(place.partition, found))
        self.reader_of: ReaderOf = named.reader_factory()
        self.schema, self.key_type = changes_schema(self.columns), self.columns.key_type

    @property
    def tasks(self) -> Sequence[ReadTask]:  # type: ignore[override]
        """:raises ToolRefused: the begin is not stored any more."""
        if self._unstored:
            raise ToolRefused(self._unstored)
        return self._tasks

    def read(self, task: ReadTask, wanted: spark.StructType, pushed: Pushed) -> Iterator[pa.RecordBatch]:
        for rows in changes_of(self.reader_of, task.work, pushed.chosen):
            for first in range(0, len(rows), BATCH):
                yield changes_batch(self.columns, task.partition, rows[first : first + BATCH], wanted)


def _begins(
    named: NamedService, view: StoredPartitions, places: list[Place], ends: Sequence[FoldPlan]
) -> list[FoldPlan]:
    since = named.options.since
    if not since:
        return [_oldest(view.reader, each) for each in ends]
    return plan(view.reader, places, named.points(view, places, since, "since"))


def _oldest(reader: Reader, end: FoldPlan) -> FoldPlan:
    """Return the plan of the oldest stored state of this state generation.

    :raises ToolRefused: no state is stored.
    """
    place = end.place
    stored = kept(reader, place, planning.make(reader, place))
    if stored is None:
        raise ToolRefused(
            f"{place.input}[{place.partition}]: no state is stored: no full snapshot is usable, and the deltas do not "
            f"begin at 0"
        )
    return planning.make(reader, place, before=stored.oldest.offset + 1)


def _between(named: NamedService, place: Place, begin: FoldPlan, end: FoldPlan, *, since: bool) -> ChangesTask:
    """Return the task that reads the changes after the state of `begin` up to that of `end`."""
    recorded_types.check(begin.goal.commit_record, place.types, place.input)
    if begin.goal.commit_record.n > end.goal.commit_record.n:
        options = named.options
        raise UsageError(
            f"{place.input}[{place.partition}]: option since={options.since} is after option at={options.at}: "
            f"transactions {begin.goal.commit_record.n} and {end.goal.commit_record.n}"
        )
    whole = lean(msgspec.structs.replace(end, base=begin.base, start=begin.start))
    after = begin.goal.commit_record.n
    if begin.base is not None and not since:  # the commit record of its transaction may be without a delta
        after = begin.base.manifest.through
    options = named.options
    return ChangesTask(
        plan=whole,
        table=options.table,
        after=after,
        before=options.before is not False,
        verify=options.verify,
        text=text_keys(named.tables),
    )
