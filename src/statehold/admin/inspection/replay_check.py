"""Replays real input with the service's own handler, and compares the results with what was written.

From an older state, record by record, up to a newer one: after each transaction the keys that its delta wrote must have
the values that the handler computes now, and the outputs must equal those on the topics. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from statehold.admin.inspection.output_records import InputRecords, OutputRecord, WrittenOutputs
from statehold.admin.inspection.replay_diff import Comparison, Replayed, Wrote
from statehold.admin.inspection.topic_view import TopicView
from statehold.api.handler import HandlerFactory
from statehold.api.record import Message, at
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.reference import references
from statehold.bound.topics import output_topics
from statehold.errors import RetentionGap, UsageError
from statehold.messages.pinned_command import PinnedMessage
from statehold.ports import OutOfRange
from statehold.snapshot import full_listing
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.contents import Contents
from statehold.snapshot.inspect.past import PastState, Point
from statehold.snapshot.inspect.typed import Typed
from statehold.snapshot.restore.discovery import last_commit_record
from statehold.state.partition_table import Changes
from statehold.worker.failures.history import recall
from statehold.worker.failures.retry_records import handle
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.event_time import require_segments
from statehold.worker.handler.record_failure import BatchFailed, HandlingFailed
from statehold.worker.inputs.recorded_order import RecordedOrder


def replay(view: TopicView, factory: HandlerFactory, partition: int, since: str | None, until: str | None) -> Replayed:
    """Replay one partition between two points; by default from the full before the newest to the newest one.

    :raises UsageError, StateRefused: a point is not kept. :raises RetentionGap: the input between them is gone.
    :raises RecordError: the handler fails on a record that it had handled.
    """
    place = view.place(partition)
    old, new = _points(view, place, since, until)
    first, last = past.at(view.reader, place, old), past.at(view.reader, place, new)
    if first.lineage != last.lineage:
        raise UsageError(
            f"{place.input}[{place.partition}]: replay transactions {first.n} to {last.n}: a command has replaced the "
            f"state between them, and no record explains that. Next: choose both points on one side of it; `statehold "
            f"snapshot list --all` shows the state generations"
        )
    return _Replay(view, factory, place, first, last).run()


def _points(view: TopicView, place: Place, since: str | None, until: str | None) -> tuple[Point, Point]:
    """What was asked for. By default the newest full and the one before it; where there is only one, the beginning and
    that one, or that one and the end when the beginning is gone.
    """
    commit_record = last_commit_record(view.reader, place.names.changelog, place.partition)
    usable = [
        Point("full", full.offset) for full in full_listing.find(view.reader, place, commit_record) if not full.finding
    ]
    whole = view.reader.bounds(place.names.changelog, place.partition)[0] == 0 and not (
        commit_record and commit_record.adopted
    )
    states = [*usable, Point("n", 0)] if whole else usable
    if len(states) < 2 or not usable:
        states.insert(0, past.LATEST)
    new = states[0] if until is None else view.point(place.partition, until)
    if since is not None:
        return view.point(place.partition, since), new
    return states[1] if until is None else states[-1], new


class _Replay:
    def __init__(self, view: TopicView, factory: HandlerFactory, place: Place, old: PastState, new: PastState) -> None:
        self.view, self.place, self.old, self.new = view, place, old, new
        #: one for each input, because they are read in turns
        self.readers = [view.another_reader() for _ in place.names.inputs]
        self.reader = self.readers[0]
        kind = factory if isinstance(factory, type) else type(factory())
        if references(kind):
            raise UsageError(
                f"{kind.__name__} reads reference data, whose topics keep the newest values only: what records saw "
                f"long ago cannot be shown to them again. `statehold snapshot verify` without --replay proves the state"
            )
        self.typed = Typed(tables_and_outputs(kind)[0])
        wanted = [*output_topics(kind, place.names), *place.names.rekeys]
        self.topics = view.facts_of([*wanted, place.names.dead])
        self.dead = self.topics[place.names.dead] is not None
        if place.names.dead not in wanted and not self.dead:
            del self.topics[place.names.dead]
        self.positions = old.positions
        self.engine = Engine(factory, place.partition, output_partitions=self._partitions, names=place.names)
        self.report = Replayed(place.partition, old.position, new.position)

    def run(self) -> Replayed:
        """:raises RetentionGap, RecordError:"""
        try:
            self._load(self.old.contents)
            written = WrittenOutputs(self.reader, self.place.partition, self.old.n, self.new.n, self.topics)
            self.comparison = Comparison(self.place, self.typed, self.engine.state, written, self.new, self.report)
            self._replay()
        except OutOfRange as error:
            raise RetentionGap(
                f"the input from {self.old.position} on is needed for the replay and gone; --from names a later point",
                topic=self.place.input,
                partition=self.place.partition,
                position=self.old.position,
            ) from error
        except HandlingFailed as poison:
            raise poison.error from poison
        finally:
            for reader in self.readers:
                reader.close()
        return self.report

    def _replay(self) -> None:
        self.tried = recall(self.engine, self.reader, self.place.names, self.place.partition, dead=self.dead)
        place, old, new = self.place, self.old, self.new
        if place.names.others:
            order = RecordedOrder(self.readers, place, old.positions, new.positions)
            self._transactions(lambda commit_record: order.transaction(commit_record.runs))
        else:
            given = InputRecords(self.reader, place.input, place.partition, old.position, new.position)
            self._transactions(lambda commit_record: given.before(commit_record.position(place.input)))

    def _transactions(self, messages: Callable[[CommitRecord], Iterator[Message]]) -> None:
        """Replay each transaction; `messages` returns the records of one."""
        for increment in self._increments():
            self._transaction(increment, messages(increment.commit_record))
            if self.report.differences:
                return
        self.comparison.end()

    def _partitions(self, topic: str) -> int:
        fact = self.topics[topic]
        return fact.partitions if fact else 0

    def _load(self, contents: Contents) -> None:
        state = self.engine.state
        for name, held in contents.tables.items():
            if name not in state.tables:
                known = ", ".join(sorted(state.tables)) or "none"
                raise UsageError(f"the state holds table {name!r}, this code declares: {known}")
            state.load(Changes(name, list(held), list(held.values())))
        state.loaded()

    def _increments(self) -> Iterator[Increment]:
        chain = Chain(self.place.names.changelog, self.place.partition, last=self.old.n, lineage=self.old.lineage)
        base = self.old.base.manifest if self.old.base else None
        for increment in past.increments(self.view.reader, self.place, base.increment if base else -1, chain):
            if increment.commit_record.n > self.new.n:
                return
            yield increment

    # One transaction

    def _transaction(self, increment: Increment, messages: Iterator[Message]) -> None:
        commit_record, wrote, ordinal = increment.commit_record, Wrote(), 0
        self.report.transactions += 1
        require_segments(self.engine.event_time, commit_record, self.place.input, "--from names a later point")
        self.engine.limit_time(commit_record.time_limit)
        for message in messages:
            self.comparison.record(message)
            ordinal = self._record(partial(self._handle, message), at(message), commit_record.n, ordinal, wrote)
        for pinned in commit_record.pinned:  # commands were handled after the last record of their transaction
            message = PinnedMessage(self.place.names.control, self.place.partition, pinned)
            position = commit_record.position(self.place.input)
            ordinal = self._record(partial(self.engine.obey, message), position, commit_record.n, ordinal, wrote)
        for topic, retried in self.tried.between(self.positions, commit_record.positions):
            again = partial(handle, self.engine, topic, retried)
            ordinal = self._record(again, retried.message.offset() or 0, commit_record.n, ordinal, wrote)
        self.positions = commit_record.positions
        self.comparison.transaction(increment, wrote, ordinal)

    def _handle(self, message: Message) -> None:
        try:
            self.engine.run([message])
        except HandlingFailed as poison:
            if not isinstance(poison, BatchFailed):
                raise
            self.engine.rollback()
            self.engine.run([message], one_by_one=True)

    def _record(self, handle: Callable[[], object], offset: int, n: int, ordinal: int, wrote: Wrote) -> int:
        engine = self.engine
        handle()
        frozen = engine.freeze()
        for changes in frozen.changes:
            for key in changes.keys:
                wrote.setdefault((changes.table, key), []).append(offset)
        engine.state.commit(frozen, delta=True)
        engine.effects.take()
        engine.take_commands()
        self.report.records += 1
        for sent in engine.take_outputs():
            self.comparison.output(OutputRecord.sent(sent), offset, n, ordinal)
            ordinal += 1
        return ordinal
