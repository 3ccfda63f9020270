"""Reads what a running service commits, some transactions at a time, with their records and their outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from statehold.admin.inspection.output_records import InputRecords
from statehold.api.handler import Handler
from statehold.api.record import Message
from statehold.errors import StateRefused
from statehold.messages.dead_letter import DeadLetter, Resolution, read
from statehold.messages.pinned_command import PinnedMessage
from statehold.ports import Clock, OutOfRange
from statehold.rehearsal.comparison import LiveResults
from statehold.rehearsal.failing import NewFailures
from statehold.rehearsal.live_outputs import LiveOutputs
from statehold.rehearsal.new_code import LiveTransaction
from statehold.shadow.source import ShadowReaders, ShadowSource
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.past import PastState
from statehold.worker.failures.history import At, RetryHistory
from statehold.worker.handler.dead_letters import FailureDecision
from statehold.worker.inputs.recorded_order import RecordedOrder

#: transactions, records, outputs and bytes of deltas that are held at a time
_TRANSACTIONS: Final = 1_000
_RECORDS: Final = 10_000
_OUTPUTS: Final = 10_000
_BYTES: Final = 4_000_000
#: seconds after which outputs that an open transaction of another producer hides are passed over
HIDDEN: Final = 60.0


class StateReplaced(Exception):
    """A tool replaced the state, so that the shadow has to start again."""

    def __init__(self, n: int, tool: str) -> None:
        super().__init__(f"{tool} replaced the state in transaction {n}")


@dataclass(slots=True)
class _Waiting:
    """Outputs that are committed and not readable yet: each partition of a topic gets its own commit marker."""

    #: the last transaction that is waited for, and the ends of the output topics after it had committed
    through: int
    written: Mapping[tuple[str, int], int]
    since: float


class Tail:
    """The transactions of one partition after a state, in order. Used by one thread."""

    def __init__(
        self,
        source: ShadowSource,
        readers: ShadowReaders,
        place: Place,
        kind: type[Handler[Any]],
        state: PastState,
        topics: Mapping[str, int],
        failures: NewFailures,
        clock: Clock,
    ) -> None:
        """`topics`: those that the new code writes to, with their number of partitions."""
        self._source, self._readers, self._place, self._clock = source, readers, place, clock
        self._topics, self._failures = topics, failures
        self.n, self._lineage, self.positions = state.n, state.lineage, state.positions
        base = state.base.manifest if state.base is not None else None
        #: the next changelog offset to read; -1: the first one
        self._offset = base.increment if base is not None else -1
        existing = {topic: count for topic, count in topics.items() if count}
        self._outputs = LiveOutputs(readers.outputs, place.partition, state.n, existing)
        self._tried = RetryHistory(kind, place.names)
        self._decisions: dict[At, FailureDecision] = {}
        #: the next offsets of dead letters and retries
        self._read_to: dict[str, int] = {}
        #: transactions that were read and not handed over, the first of them complete or not
        self._held: list[Increment] = []
        self._waiting: _Waiting | None = None
        #: up to these transactions all outputs were read, or passed over because they are hidden
        self._settled = self._hidden = state.n

    def behind(self, end: int) -> bool:
        """Return whether there may be transactions before this end of the changelog that were not handed over."""
        return bool(self._held) or end > self._offset

    @property
    def waits(self) -> bool:
        """Whether the outputs of a transaction are not readable yet."""
        return self._waiting is not None

    @property
    def read_to(self) -> int:
        """Return the next offset of the changelog to read."""
        return self._offset

    def shrank(self, end: int) -> bool:
        """Return whether the changelog ends before what was read of it."""
        return end < self._offset

    def read(self, end: int) -> list[tuple[LiveResults, LiveTransaction]]:
        """Return the next transactions; nothing if the changelog has no more, or if their outputs are not readable yet.

        `end`: of the changelog. Changes nothing that a repetition after an error of Kafka would miss.

        :raises StateReplaced: the next one replaces the state. :raises OutOfRange: retention has deleted records.
        """
        if not self._held:
            try:
                self._held = self._increments(end)
            except StateRefused as error:
                low = self._readers.changelog.bounds(self._place.names.changelog, self._place.partition)[0]
                if low <= self._offset:
                    raise
                raise OutOfRange(f"the changelog begins at {low} now, and was read up to {self._offset}") from error
        if not self._held:
            return []
        replacement = self._held[0].replacement
        if replacement is not None:
            raise StateReplaced(self._held[0].commit_record.n, replacement.tool)
        ready = self._ready()
        if not ready:
            return []
        given = self._given([each.commit_record for each in ready])
        self._held = self._held[len(ready) :]
        return [(self._results(increment), each) for increment, each in zip(ready, given, strict=True)]

    def handled(self, record: CommitRecord) -> None:
        """Note that a transaction is part of the state."""
        self.n, self._lineage, self.positions = record.n, record.lineage, record.positions
        self._outputs.passed(record.n)

    # The changelog

    def _increments(self, end: int) -> list[Increment]:
        place, found = self._place, list[Increment]()
        chain = Chain(place.names.changelog, place.partition, last=self.n, lineage=self._lineage, crossing=True)
        records = outputs = size = 0
        position, offset = self._sum(self.positions), self._offset
        with closing(past.increments(self._readers.changelog, place, offset, chain)) as increments:
            for increment in increments:
                record = increment.commit_record
                if increment.replacement is not None and found:
                    break  # alone in the next call
                found.append(increment)
                offset = increment.commit_record_offset + 1
                records += self._sum(record.positions) - position
                position = self._sum(record.positions)
                outputs += record.outputs
                size += sum(len(raw) for part in increment.parts for raw in part.entries)
                if (
                    increment.replacement is not None
                    or len(found) >= _TRANSACTIONS
                    or max(records / _RECORDS, outputs / _OUTPUTS, size / _BYTES) >= 1
                ):
                    break
            else:
                offset = max(offset, end)
        self._offset = offset  # now, because an error of Kafka loses what was found
        return found

    def _sum(self, positions: Mapping[str, int]) -> int:
        return sum(positions.get(topic, 0) for topic in self._place.names.inputs)

    # Outputs

    def _ready(self) -> list[Increment]:
        """Return the first transactions whose outputs are readable."""
        held = self._held
        outputs, last = self._outputs, held[-1].commit_record.n
        if any(each.commit_record.outputs for each in held):
            outputs.follow(self._readers.outputs)
            outputs.load(last)
        if self._waiting is not None and outputs.reaches(self._waiting.written):
            self._settled, self._waiting = self._waiting.through, None
        elif self._waiting is not None and self._clock() - self._waiting.since >= HIDDEN:
            self._settled = self._hidden = self._waiting.through
            self._waiting = None
        for i, increment in enumerate(held):
            record = increment.commit_record
            if record.n > self._settled and outputs.count(record.n) < record.outputs:
                if self._waiting is None:
                    written = {place: self._source.written(*place) for place in outputs.places}
                    self._waiting = _Waiting(last, written, self._clock())
                return held[:i]
        self._waiting = None
        return list(held)

    def _results(self, increment: Increment) -> LiveResults:
        n, outputs = increment.commit_record.n, self._outputs
        unknown = outputs.nameless or outputs.may_be_deleted(n) or n <= self._hidden
        sent = outputs.of(n) if increment.commit_record.outputs else []  # those without are not read
        return LiveResults(increment, sent, unknown)

    # What the service handled

    def _given(self, records: Sequence[CommitRecord]) -> list[LiveTransaction]:
        names, partition = self._place.names, self._place.partition
        self._recall()
        messages = self._messages(records[-1])
        positions, found = self.positions, list[LiveTransaction]()
        for record in records:
            pinned = [PinnedMessage(names.control, partition, each) for each in record.pinned]
            retries = list(self._tried.between(positions, record.positions))
            found.append(LiveTransaction(record.n, list(messages(record)), pinned, retries, record.time_limit))
            positions = record.positions
        return found

    def _messages(self, last: CommitRecord) -> Callable[[CommitRecord], Iterator[Message]]:
        """Return a function that returns the records of the next transaction."""
        place, inputs, begin = self._place, self._readers.inputs, self.positions
        if place.names.others:
            order = RecordedOrder(inputs, place, begin, last.positions)
            return lambda record: order.transaction(record.runs)
        given = InputRecords(inputs[0], place.input, place.partition, begin[place.input], last.position(place.input))
        return lambda record: given.before(record.position(place.input))

    def _recall(self) -> None:
        """Read the decisions about failed records that were committed since the last call."""
        names, positions = self._place.names, self.positions
        if not self._topics.get(names.dead):
            return
        self._tried.passed(positions)
        # The range of the dead letters first: all retries of a dead letter were committed before it.
        low, high = self._unread(names.dead)
        for topic in self._tried.topics:
            start, end = self._unread(topic)
            self._tried.add(topic, list(self._between(topic, start, end)))
            self._read_to[topic] = end
        pending = filter(self._pending(), map(read, self._between(names.dead, low, high)))
        self._decisions |= self._tried.decisions(pending, names.control)
        self._read_to[names.dead] = high
        self._decisions = {at: each for at, each in self._decisions.items() if at[1] >= positions.get(at[0], 0)}
        self._failures.keep(self._decisions)

    def _pending(self) -> Callable[[DeadLetter | Resolution | None], bool]:
        """Return whether a dead letter or resolution is of a transaction that was not handed over."""
        positions, control, waiting = self.positions, self._place.names.control, self._tried.records

        def is_pending(each: DeadLetter | Resolution | None) -> bool:
            if isinstance(each, Resolution):
                return each.command >= positions.get(control, 0)
            if each is None:
                return False
            return each.offset >= positions.get(each.topic, 0) or (each.topic, each.offset) in waiting

        return is_pending

    def _unread(self, topic: str) -> tuple[int, int]:
        start, end = self._readers.outputs.bounds(topic, self._place.partition)
        return max(start, self._read_to.get(topic, self.positions.get(topic, 0))), end

    def _between(self, topic: str, start: int, end: int) -> Iterator[Message]:
        for batch in self._readers.outputs.read(topic, self._place.partition, start, end):
            yield from batch
