"""The stream of a table's changes, with exact offsets: a batch that Spark repeats has the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from statehold.errors import ToolRefused
from statehold.ports import Reader
from statehold.snapshot.format import recorded_types
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.restore import discovery
from statehold.snapshot.restore.discovery import LocatedCommitRecord
from statehold.snapshot.spark.export.export import plan
from statehold.snapshot.spark.export.point_in_time import PointInTime
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.spark.change_rows import ChangesTask, changes_of, replaced
from statehold.spark.opening import NamedService
from statehold.spark.options import SourceOptions
from statehold.spark.pushdown import Pushed
from statehold.spark.relations import ChangesTable, ReadTask, changes_batch, tasks_of
from statehold.spark.state_rows import lean, text_keys

#: partition -> transaction up to which its changes were read, and the changelog offset after its commit record
Offset = Mapping[str, Sequence[int]]


class ChangesStream(DataSourceStreamReader):
    """Reads the changes of whole transactions; an offset names transaction and changelog offset of each partition."""

    def __init__(self, options: SourceOptions, relation: ChangesTable, schema: spark.StructType) -> None:
        self._options = msgspec.structs.replace(options, before=options.before is True)
        self._schema, self._columns, self._reader_of = schema, relation.columns, relation.reader_of

    def initialOffset(self) -> dict[str, list[int]]:  # noqa: N802 - PySpark's name
        """Return the point of the option `since`, by default the oldest stored transaction."""
        named = NamedService(self._options)
        with named.view() as view:
            places = named.places(view)
            if not self._options.since:
                return {str(place.partition): _begin(view.reader, place) for place in places}
            points = named.points(view, places, self._options.since, "since")
            plans = plan(view.reader, places, points)
            return {str(each.partition): [each.goal.commit_record.n, each.goal.offset + 1] for each in plans}

    def latestOffset(self, *_: Any) -> dict[str, list[int]]:  # noqa: N802 - PySpark's name
        """Return the newest commit record of each partition that has a delta."""
        named = NamedService(self._options)
        with named.view() as view:
            return {str(place.partition): _offset(_newest(view.reader, place)) for place in named.places(view)}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        named = NamedService(self._options)
        with named.view() as view:
            found = [
                self._task(named, view.reader, place, start[str(place.partition)], end[str(place.partition)])
                for place in named.places(view)
                if start[str(place.partition)][0] < end[str(place.partition)][0]
            ]
        return [InputPartition(ReadTask(each.plan.partition, each)) for each in found]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        for task in tasks_of(partition):
            for rows in changes_of(self._reader_of, task.work, Pushed().chosen):
                yield changes_batch(self._columns, task.partition, rows, self._schema)

    def _task(
        self, named: NamedService, reader: Reader, place: Place, start: Sequence[int], end: Sequence[int]
    ) -> ChangesTask:
        (after, begin), (through, stop) = start, end
        where = f"{place.input}[{place.partition}]"
        low, _ = reader.bounds(place.names.changelog, place.partition)
        if begin < low:
            raise ToolRefused(
                f"{where}: continue the stream after transaction {after}: Kafka has deleted "
                f"the changes up to offset {low} of {place.names.changelog}. No row was returned. Next: begin a new "
                f"stream from the state at `latest`, and raise snapshot.keep"
            )
        last = discovery.newest_commit_record(reader, place, lambda made: made.n <= through, stop)
        if last is None or last.commit_record.n != through:
            raise ToolRefused(
                f"{where}: continue the stream: transaction {through} is not at offset {stop} "
                f"of {place.names.changelog} any more. Next: check whether the topic was created again"
            )
        if last.commit_record.adopted > after:
            raise replaced(where, last.commit_record.adopted)
        found = FoldPlan(place, last.commit_record, last, None, (), begin, stop)
        if self._options.before:
            at = PointInTime("increment", begin, f"transaction {after}")
            base = plan(reader, [place], {place.partition: at})[0]
            found = msgspec.structs.replace(found, base=base.base, start=base.start)
        return ChangesTask(
            plan=lean(found),
            table=self._options.table,
            after=after,
            before=bool(self._options.before),
            verify=self._options.verify,
            text=text_keys(named.tables),
        )


def _newest(reader: Reader, place: Place) -> LocatedCommitRecord:
    found = plan(reader, [place], {})[0].goal
    recorded_types.check(found.commit_record, place.types, place.input)
    return found


def _offset(located: LocatedCommitRecord) -> list[int]:
    return [located.commit_record.n, located.offset + 1]


def _begin(reader: Reader, place: Place) -> list[int]:
    """Return the offset after the oldest stored commit record, whose own changes may be deleted in part."""
    newest = _newest(reader, place)
    adopted = newest.commit_record.adopted
    first = discovery.oldest_commit_record(reader, place, lambda made: made.n >= adopted)
    return _offset(first if first is not None else newest)
