"""Reads which transactions a service has committed, some at a time, with the records that each handled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from statehold.admin.inspection.output_records import InputRecords
from statehold.api.handler import Handler
from statehold.api.record import Message
from statehold.errors import StateRefused
from statehold.messages.dead_letter import DeadLetter, Resolution, read
from statehold.messages.pinned_command import PinnedMessage
from statehold.ports import OutOfRange
from statehold.rehearsal.failing import NewFailures
from statehold.rehearsal.new_code import LiveTransaction
from statehold.shadow.source import ShadowReaders
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
_ALL: Final = 1 << 62


class ChangelogTruncated(OutOfRange):
    """The next transactions are not on the changelog any more."""


class HandledTransactions:
    """The transactions of one partition after a state, in order. Used by one thread."""

    def __init__(
        self,
        readers: ShadowReaders,
        place: Place,
        kind: type[Handler[Any]],
        state: PastState,
        topics: Mapping[str, int],
        failures: NewFailures,
    ) -> None:
        """`topics`: those that the new code writes to, with their number of partitions."""
        self._readers, self._place, self._topics, self._failures = readers, place, topics, failures
        self.n, self.positions = state.n, state.positions
        #: None: that of the first transaction
        self._lineage: str | None = state.lineage or None
        base = state.base.manifest if state.base is not None else None
        #: the next changelog offset to read; -1: the first one
        self._offset = base.increment if base is not None else -1
        self._tried = RetryHistory(kind, place.names)
        self._decisions: dict[At, FailureDecision] = {}
        #: the next offsets of dead letters and retries
        self._read_to: dict[str, int] = {}
        #: transactions that were read and not handed over, the first of them complete or not
        self._held: list[Increment] = []

    def behind(self, end: int) -> bool:
        """Return whether there may be transactions before this end of the changelog that were not handed over."""
        return bool(self._held) or end > self._offset

    @property
    def read_to(self) -> int:
        """Return the next offset of the changelog to read."""
        return self._offset

    def shrank(self, end: int) -> bool:
        """Return whether the changelog ends before what was read of it."""
        return end < self._offset

    def handled(self, record: CommitRecord) -> None:
        """Note that a transaction is part of the state."""
        self.n, self._lineage, self.positions = record.n, record.lineage, record.positions

    # The changelog

    def _hold(self, end: int, through: int = _ALL) -> None:
        """Read the next transactions, `through` the last, unless some are held.

        :raises ChangelogTruncated: they are not there any more.
        """
        if self._held:
            return
        try:
            self._held = self._increments(end, through)
        except (StateRefused, OutOfRange) as error:
            low = self._readers.changelog.bounds(self._place.names.changelog, self._place.partition)[0]
            if low <= self._offset:
                raise
            text = f"the changelog begins at {low} now, and was read up to {self._offset}"
            raise ChangelogTruncated(text) from error

    def _increments(self, end: int, through: int) -> list[Increment]:
        place, found = self._place, list[Increment]()
        chain = Chain(place.names.changelog, place.partition, last=self.n, lineage=self._lineage, crossing=True)
        records = outputs = size = 0
        position, offset = self._sum(self.positions), self._offset
        with closing(past.increments(self._readers.changelog, place, offset, chain)) as increments:
            for increment in increments:
                record = increment.commit_record
                if record.n > through or (increment.replacement is not None and found):
                    break  # a replacement is alone in the next call
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

    # What the service handled

    def _given(self, records: Sequence[CommitRecord]) -> list[LiveTransaction]:
        names, partition = self._place.names, self._place.partition
        self.recall()
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

    def recall(self) -> None:
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
