"""The door of this room: rehearses one partition of a service with new code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final

import msgspec

from statehold.api.handler import Handler, HandlerFactory
from statehold.bound.reference import references
from statehold.bound.topics import output_topics
from statehold.config.settings import Settings
from statehold.errors import (
    InputsChanged,
    PartitionError,
    RetentionGap,
    TableTypeChanged,
    UnknownEffect,
    UnknownSchema,
    UnreadableValue,
    UpgradeUnfinished,
    UsageError,
)
from statehold.health import process_memory
from statehold.ports import OutOfRange, Reader
from statehold.rehearsal.fields import IgnoredFields
from statehold.rehearsal.report import RehearsedPartition
from statehold.rehearsal.saved_results import ResultFiles
from statehold.rehearsal.source import RehearsalSource, with_tables
from statehold.rehearsal.stored_values import examine, load
from statehold.rehearsal.transactions import ComparedTransactions, RehearsedTransactions
from statehold.snapshot import full_listing
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.past import PastState, Point
from statehold.snapshot.restore.discovery import require_commit_record
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.pending_effects import require_effects

#: errors by which a takeover rejects the state because of the code
_REJECTED: Final = (UnknownSchema, TableTypeChanged, UnreadableValue, UpgradeUnfinished, InputsChanged)


class RehearsalLimits(msgspec.Struct, frozen=True):
    """Where a rehearsal begins and ends, and what it shows."""

    #: a point as the user wrote it; '' for the newest full snapshot that enough records follow
    since: str = ""
    #: most records of a partition, rounded up to a transaction; 0 for all
    records: int = 0
    #: most seconds of a partition; 0 for no limit
    seconds: float = 0.0
    ignore: tuple[str, ...] = ()
    #: examples of each topic and table
    examples: int = 3


def rehearse(
    source: RehearsalSource,
    factory: HandlerFactory,
    partition: int,
    limits: RehearsalLimits,
    settings: Settings | None = None,
    files: ResultFiles = ResultFiles(),  # noqa: B008  immutable
    clock: Callable[[], float] = time.monotonic,
) -> RehearsedPartition:
    """Rehearse one partition: it reads, and writes nothing anywhere.

    :raises UsageError: the point is not stored, or the handler cannot be rehearsed. :raises RetentionGap: the input
        after the point is gone. :raises StateRefused: the stored state is damaged.
    """
    kind = rehearsable(factory)
    return _Rehearsal(
        source, factory, kind, source.place(partition), limits, settings or Settings(), files, clock
    ).run()


def rehearsable(factory: HandlerFactory) -> type[Handler[Any]]:
    """Return the class of the handler. :raises UsageError: past records cannot be given to it."""
    kind = factory if isinstance(factory, type) else type(factory())
    if references(kind):
        raise UsageError(
            f"{kind.__name__} reads reference data, whose topics keep the newest values only: what records saw long "
            f"ago cannot be shown to them again. Nothing was changed. Next: test this handler with `Driver`"
        )
    return kind


def takes_over(place: Place, kind: type[Handler[Any]], last: CommitRecord, report: RehearsedPartition) -> bool:
    """Compare versions and types as a takeover does. Return whether the values can be read to show what differs."""
    try:
        with_tables(place, kind).check(last)
    except _REJECTED as error:
        report.unreadable.append(_without_place(error))
        return not isinstance(error, InputsChanged)
    return True


def topics_of(source: RehearsalSource, kind: type[Handler[Any]], place: Place) -> dict[str, int]:
    """Return the number of partitions of each topic that the new code writes to; 0 for a missing one."""
    outputs = [topic for topic in output_topics(kind, place.names) if topic != place.names.dead]
    return source.topics([*dict.fromkeys(outputs), *place.names.rekeys, place.names.dead])


def engine_at(
    state: PastState,
    factory: HandlerFactory,
    place: Place,
    topics: Mapping[str, int],
    settings: Settings,
    last: CommitRecord,
    report: RehearsedPartition,
) -> Engine:
    """Return the new code with the state, whose contents move into its tables.

    The report says if it cannot call an effect that is pending at the commit record `last`.
    """
    report.from_n, report.start, report.to_n, report.end = state.n, state.position, state.n, state.position
    engine = new_engine(factory, place, topics, settings)
    try:
        require_effects(engine.handler, place, last)
    except UnknownEffect as error:
        report.unreadable.append(_without_place(error))
    load(state.contents, engine.state, report)
    return engine


def new_engine(factory: HandlerFactory, place: Place, topics: Mapping[str, int], settings: Settings) -> Engine:
    """Return the new code with empty tables."""
    return Engine(
        factory,
        place.partition,
        output_partitions=lambda topic: topics.get(topic, 0),
        names=place.names,
        settings=settings,
    )


class _Rehearsal:
    def __init__(
        self,
        source: RehearsalSource,
        factory: HandlerFactory,
        kind: type[Handler[Any]],
        place: Place,
        limits: RehearsalLimits,
        settings: Settings,
        files: ResultFiles,
        clock: Callable[[], float],
    ) -> None:
        self._source, self._factory, self._kind, self._place = source, factory, kind, place
        self._limits, self._settings, self._files, self._clock = limits, settings, files, clock
        self._report = RehearsedPartition(place.partition)
        self._ignored = IgnoredFields(limits.ignore)

    def run(self) -> RehearsedPartition:
        began = self._clock()
        with closing(self._source.reader()) as reader:
            self._run(reader)
        report = self._report
        report.ignored = dict(self._ignored.used)
        report.seconds, report.memory = self._clock() - began, process_memory.used()
        if not report.unreadable:
            self._files.end(report)
        report.conclude()
        return report

    def _run(self, reader: Reader) -> None:
        place, report = self._place, self._report
        last = require_commit_record(reader, place.names.changelog, place.partition, "rehearse a release")
        if not takes_over(place, self._kind, last, report):
            return
        state = self._state(reader, last)
        topics = topics_of(self._source, self._kind, place)
        engine = engine_at(state, self._factory, place, topics, self._settings, last, report)
        examine(engine.state.tables, self._ignored, report, self._limits.examples)
        if report.unreadable:
            return
        self._files.begin(place.partition, state.n)
        examples = self._limits.examples
        compared = ComparedTransactions(place, engine, state, report, self._ignored, examples, self._files)
        live = RehearsedTransactions(self._source, place, engine, state, report, compared)
        readers = [self._source.reader() for _ in range(2 + len(place.names.inputs))]
        try:
            live.run(readers, topics, last, self._until())
        except OutOfRange as error:
            raise RetentionGap(
                f"the rehearsal needs the records from {state.position} on, and retention has deleted some: {error}. "
                f"Nothing was changed. Next: --from names a later point",
                topic=place.input,
                partition=place.partition,
                position=state.position,
            ) from error
        finally:
            for each in readers:
                each.close()

    def _until(self) -> Callable[[], bool]:
        """Return a function that returns True once a limit is reached."""
        limits, report, clock = self._limits, self._report, self._clock
        end = clock() + limits.seconds if limits.seconds else None
        return lambda: bool(
            (limits.records and report.records >= limits.records) or (end is not None and clock() >= end)
        )

    def _state(self, reader: Reader, last: CommitRecord) -> PastState:
        place, since = self._place, self._limits.since
        if since:
            return past.at(reader, place, self._source.point(place.partition, since))
        found: Point | None = None
        end = last.position(place.input) - max(1, self._limits.records)
        for full in full_listing.find(reader, place, last):
            if full.finding or full.manifest is None:
                continue
            found = Point("full", full.offset)
            if full.manifest.position(place.input) <= end:
                break
        else:
            if reader.bounds(place.names.changelog, place.partition)[0] == 0 and not last.adopted:
                found = Point("n", 0)
        return past.at(reader, place, found or past.LATEST)


def _without_place(error: PartitionError) -> str:
    """Return the text of an error without the partition, which the report names."""
    where = f"{error.topic}[{error.partition}]" + (f"@{error.position}" if error.position >= 0 else "")
    return f"{type(error).__name__}: {str(error).removeprefix(f'{where}: ')}"
