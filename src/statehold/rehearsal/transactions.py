"""Gives the new code the records of each live transaction, and compares its results with the committed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from statehold.admin.inspection.output_records import InputRecords
from statehold.api.declaration import options_of
from statehold.api.output import Output, OutputOptions
from statehold.api.record import Message
from statehold.common.class_body import class_attributes
from statehold.messages.pinned_command import PinnedMessage
from statehold.ports import Reader
from statehold.rehearsal.comparison import LiveResults, TransactionComparison, TransactionDifferences
from statehold.rehearsal.failing import NewFailures
from statehold.rehearsal.fields import IgnoredFields
from statehold.rehearsal.live_outputs import LiveOutputs
from statehold.rehearsal.new_code import LiveTransaction, NewCode, NewResults
from statehold.rehearsal.report import RehearsedPartition
from statehold.rehearsal.saved_results import ResultFiles
from statehold.rehearsal.source import RehearsalSource
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, UnknownTable
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.past import PastState
from statehold.worker.failures.history import RetryHistory, recall
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.event_time import require_segments
from statehold.worker.handler.time_slices import is_inside
from statehold.worker.inputs.recorded_order import RecordedOrder

#: transactions, outputs and bytes of deltas that are held at a time
_TRANSACTIONS: Final = 2_000
_OUTPUTS: Final = 10_000
_BYTES: Final = 4_000_000


class ComparedTransactions:
    """Hands the new code one live transaction after the other, and compares. Used for one partition."""

    def __init__(
        self,
        place: Place,
        engine: Engine,
        state: PastState,
        report: RehearsedPartition,
        ignored: IgnoredFields,
        examples: int,
        files: ResultFiles,
    ) -> None:
        """`engine` holds the state at the point, of which `state` says where it is."""
        self._report = report
        declared: list[OutputOptions] = [*map(options_of, class_attributes(type(engine.handler), Output).values())]
        serdes = {output.topic: output.serde for output in declared}
        self.comparison = TransactionComparison(place, engine.state, serdes, report, ignored, examples, files)
        self.failures = NewFailures(engine, place.names)
        self._new = NewCode(engine, self.failures, state.positions)
        #: transactions of the service that ended between two slices, and the first of them
        self._slices, self._first_slice = 0, -1

    def take(self, live: LiveResults, given: LiveTransaction) -> None:
        """:raises UnknownTable: its delta has a table that the new code does not declare."""
        found, results = self._at_once(live, given) or self._one_by_one(live, given)
        self.failures.handled(given.retries)
        if is_inside(live.commit_record.pinned):
            self._slices += 1
            self._first_slice = live.commit_record.n if self._first_slice < 0 else self._first_slice
        self.comparison.take(found, live, given, results)
        self._report.handler_seconds = self._new.seconds

    def finish(self, report: RehearsedPartition) -> None:
        """Add to the report what is known at the end only."""
        self.comparison.finish(report)
        if self._slices and not all(each.equal for each in report.compared):
            report.notes.append(
                f"{self._slices} transaction(s) of the service, first {self._first_slice}, have a slice of the rows "
                f"that were due at one time. If the new code has other windows, timers or joins, its slices have other "
                f"rows, and the outputs and keys of these transactions count as different"
            )
        if waiting := self.failures.waiting:
            report.notes.append(f"{waiting} record(s) that the new code sent to a retry topic were not retried")

    def _at_once(self, live: LiveResults, given: LiveTransaction) -> tuple[TransactionDifferences, NewResults] | None:
        """Handle all records together. None: a record fails, or that of a difference has to be found."""
        comparison, new = self.comparison, self._new
        done = new.at_once(given)
        if done is None:
            return None
        results, frozen = done
        found = comparison.examine(live, results, frozen.changes)
        if comparison.wants_example(found):
            new.undo()
            return None
        if found.judged is not None or not live.commit_record.delta:
            comparison.tables.note(frozen.changes)
        new.commit(frozen)
        return found, results

    def _one_by_one(self, live: LiveResults, given: LiveTransaction) -> tuple[TransactionDifferences, NewResults]:
        results = self._new.one_by_one(given, self.comparison.tables.note)
        return self.comparison.examine(live, results, ()), results


class RehearsedTransactions:
    """Used once, for one partition."""

    def __init__(
        self,
        source: RehearsalSource,
        place: Place,
        engine: Engine,
        state: PastState,
        report: RehearsedPartition,
        compared: ComparedTransactions,
    ) -> None:
        """`engine` holds the state at the point, of which `state` says where it is; `compared` has both, too."""
        self._source, self._place, self._engine, self._old, self._report = source, place, engine, state, report
        self._each = compared
        self._positions: Mapping[str, int] = state.positions

    def run(
        self, readers: Sequence[Reader], topics: Mapping[str, int], last: CommitRecord, ended: Callable[[], bool]
    ) -> None:
        """Rehearse up to the commit record `last`, or until `ended`. `readers`: two, and one for each input.

        :raises OutOfRange: retention has deleted input records. :raises RetentionGap: one of several inputs has a gap.
        """
        changelog, sent, *inputs = readers
        self._tried = self._recall(sent, topics)
        messages = self._messages(inputs, last)
        readable = {topic: count for topic, count in topics.items() if count and self._source.readable(topic)}
        outputs = LiveOutputs(sent, self._place.partition, self._old.n, readable)
        unreadable = any(count and topic not in readable for topic, count in topics.items())
        for window in self._windows(changelog, last):
            outputs.load(window[-1].commit_record.n)
            for increment in window:
                record = increment.commit_record
                if ended():
                    self._report.notes.append(f"ended by a limit before transaction {record.n}")
                    self._each.finish(self._report)
                    return
                require_segments(self._engine.event_time, record, self._place.input, "name a later point")
                unknown = unreadable or outputs.nameless or outputs.may_be_deleted(record.n)
                live = LiveResults(increment, outputs.of(record.n), unknown)
                try:
                    self._each.take(live, self._given(record, messages(record)))
                except UnknownTable as error:
                    self._report.unreadable.append(f"the delta of transaction {record.n} {error}")
                    return
        self._each.finish(self._report)

    def _given(self, record: CommitRecord, messages: Iterator[Message]) -> LiveTransaction:
        names, partition = self._place.names, self._place.partition
        pinned = [PinnedMessage(names.control, partition, each) for each in record.pinned]
        retries = list(self._tried.between(self._positions, record.positions))
        self._positions = record.positions
        return LiveTransaction(record.n, list(messages), pinned, retries, record.time_limit)

    def _messages(self, inputs: Sequence[Reader], last: CommitRecord) -> Callable[[CommitRecord], Iterator[Message]]:
        """Return a function that returns the records of the next transaction."""
        place, old = self._place, self._old
        if place.names.others:
            order = RecordedOrder(inputs, place, old.positions, last.positions)
            return lambda record: order.transaction(record.runs)
        given = InputRecords(inputs[0], place.input, place.partition, old.position, last.position(place.input))
        return lambda record: given.before(record.position(place.input))

    def _recall(self, reader: Reader, topics: Mapping[str, int]) -> RetryHistory:
        """Read past decisions; keep those that no handler made."""
        place = self._place
        readable = bool(topics.get(place.names.dead)) and self._source.readable(place.names.dead)
        tried = recall(self._engine, reader, place.names, place.partition, dead=readable)
        book = self._engine.dead_letters
        self._each.failures.keep(book.decisions if book is not None else {})
        return tried

    def _windows(self, reader: Reader, last: CommitRecord) -> Iterator[list[Increment]]:
        """Yield the transactions after the point in groups, so that the output topics are read in turns."""
        window: list[Increment] = []
        outputs = size = 0
        for increment in self._increments(reader, last):
            window.append(increment)
            outputs += increment.commit_record.outputs
            size += sum(len(raw) for part in increment.parts for raw in part.entries)
            if len(window) >= _TRANSACTIONS or outputs >= _OUTPUTS or size >= _BYTES:
                yield window
                window, outputs, size = [], 0, 0
        if window:
            yield window

    def _increments(self, reader: Reader, last: CommitRecord) -> Iterator[Increment]:
        place, old = self._place, self._old
        chain = Chain(place.names.changelog, place.partition, last=old.n, lineage=old.lineage, crossing=True)
        base = old.base.manifest if old.base is not None else None
        for increment in past.increments(reader, place, base.increment if base is not None else -1, chain):
            if increment.replacement is not None:
                n, tool = increment.commit_record.n, increment.replacement.tool
                self._report.notes.append(f"ended before transaction {n}, in which {tool} replaced the state")
                return
            if increment.commit_record.n > last.n:
                return
            yield increment
