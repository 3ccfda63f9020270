"""The transaction coordinator: producer ids and epochs, open transactions, their ends and time-outs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from statehold.errors import OutcomeUnknown, ProducerFenced
from statehold.testing.kafka.future_events import FutureEvent, FutureEvents
from statehold.testing.memory.log import MemoryLog, Outcome, Transaction


class ProducerIdentity(NamedTuple):
    """Producer id and epoch of one producer session."""

    id: int
    epoch: int


@dataclass
class _Producer:
    identity: ProducerIdentity
    #: seconds
    timeout: float
    transaction: Transaction | None = None
    timer: FutureEvent | None = None
    #: groups that have pending offsets of the open transaction
    groups: set[str] = field(default_factory=set)
    #: markers of the last transaction that are not written yet
    unwritten: int = 0


class CopiedEnd(NamedTuple):
    """A copy of a commit or abort request that the network still holds."""

    transactional_id: str
    identity: ProducerIdentity
    outcome: Outcome


class TransactionCoordinator:
    """Every method is one request; it returns at once.

    librdkafka does not bump the epoch with each transaction (KIP-890 part 2), so a late copy of a request ends the
    transaction that is open when it arrives.
    """

    def __init__(self, timers: FutureEvents, publish: Callable[[str, Transaction], None]) -> None:
        """`publish(group, transaction)`: the group's pending offsets of an ended transaction count, or are dropped."""
        self._timers, self._publish = timers, publish
        self._producers: dict[str, _Producer] = {}
        self._last_id = 0
        #: copies of requests that the network holds
        self.held: list[CopiedEnd] = []
        #: called when the outcome of a transaction is decided, and when a partition has its marker
        self.on_end: list[Callable[[str, Transaction], None]] = []
        self.on_marker: list[Callable[[MemoryLog], None]] = []
        #: seconds from the end of a transaction to its marker in a partition, or to the offsets of a group by its name.
        #: The answer to a commit does not wait for them.
        self.marker_delay: Callable[[MemoryLog | str], float] = lambda place: 0.0

    def init(self, transactional_id: str, timeout: float) -> ProducerIdentity:
        """Do InitProducerId: abort what is open, and begin an epoch that fences older ones."""
        producer = self._producers.get(transactional_id)
        if producer is None:
            self._last_id += 1
            producer = self._producers[transactional_id] = _Producer(ProducerIdentity(self._last_id, 0), timeout)
        else:
            self._end(transactional_id, producer, Outcome.ABORTED)
            producer.identity = producer.identity._replace(epoch=producer.identity.epoch + 1)
            producer.timeout = timeout
        return producer.identity

    def expire(self, transactional_id: str) -> None:
        """Forget an id that was idle for transactional.id.expiration.ms. The next producer gets another producer id."""
        if transactional_id in self._producers and self._producers[transactional_id].transaction is None:
            del self._producers[transactional_id]

    def join(self, transactional_id: str, identity: ProducerIdentity, log: MemoryLog, *, member: bool) -> Transaction:
        """Return the open transaction with `log` in it. `member`: the client believes that it is in it already.

        :raises ProducerFenced: the epoch is old, or the id has expired.
        :raises OutcomeUnknown: error 48, the partition has left the transaction.
        """
        producer = self._checked(transactional_id, identity)
        transaction = producer.transaction
        if member and (transaction is None or log not in transaction.logs):
            raise OutcomeUnknown("INVALID_TXN_STATE(48): the partition has left its transaction")
        return transaction or self._begin(transactional_id, producer)

    def join_group(self, transactional_id: str, identity: ProducerIdentity, group: str) -> Transaction:
        """Do AddOffsetsToTxn: return the open transaction with the group in it. Raises what `join` raises."""
        producer = self._checked(transactional_id, identity)
        transaction = producer.transaction or self._begin(transactional_id, producer)
        producer.groups.add(group)
        return transaction

    def end(self, transactional_id: str, identity: ProducerIdentity, outcome: Outcome) -> None:
        """Do EndTxn.

        :raises ProducerFenced: the epoch is old. :raises OutcomeUnknown: no transaction is open.
        """
        producer = self._checked(transactional_id, identity)
        if not self._end(transactional_id, producer, outcome):
            raise OutcomeUnknown("INVALID_TXN_STATE(48): no transaction is open")

    def keep_copy(self, transactional_id: str, identity: ProducerIdentity, outcome: Outcome) -> None:
        """Let the network keep a copy of an EndTxn request until `release`."""
        self.held.append(CopiedEnd(transactional_id, identity, outcome))

    def release(self) -> None:
        """Deliver the held copies: each ends what its producer has open, if its epoch is still the same."""
        held, self.held = self.held, []
        for copy in held:
            producer = self._producers.get(copy.transactional_id)
            if producer is not None and producer.identity == copy.identity:
                self._end(copy.transactional_id, producer, copy.outcome)

    def ending(self, transactional_id: str) -> bool:
        """Return whether markers are not written yet; other requests of this id wait (CONCURRENT_TRANSACTIONS)."""
        producer = self._producers.get(transactional_id)
        return producer is not None and producer.unwritten > 0

    def open(self) -> Mapping[str, Transaction]:
        """Return the open transactions by transactional id."""
        return {name: each.transaction for name, each in self._producers.items() if each.transaction is not None}

    def identity(self, transactional_id: str) -> ProducerIdentity | None:
        producer = self._producers.get(transactional_id)
        return producer.identity if producer is not None else None

    def leave(self, log: MemoryLog) -> None:
        """Forget a partition whose topic was deleted."""
        for producer in self._producers.values():
            if producer.transaction is not None:
                producer.transaction.logs.pop(log, None)

    def _begin(self, transactional_id: str, producer: _Producer) -> Transaction:
        transaction = producer.transaction = Transaction()
        if producer.timeout > 0:
            producer.timer = self._timers.after(producer.timeout, lambda: self._time_out(transactional_id, transaction))
        return transaction

    def _time_out(self, transactional_id: str, transaction: Transaction) -> None:
        """Abort a transaction that took too long, and fence its producer."""
        producer = self._producers.get(transactional_id)
        if producer is not None and producer.transaction is transaction:
            producer.identity = producer.identity._replace(epoch=producer.identity.epoch + 1)
            self._end(transactional_id, producer, Outcome.ABORTED)

    def _checked(self, transactional_id: str, identity: ProducerIdentity) -> _Producer:
        producer = self._producers.get(transactional_id)
        if producer is None or producer.identity.id != identity.id:
            raise ProducerFenced(f"INVALID_PRODUCER_ID_MAPPING(49): {transactional_id} has expired")
        if producer.identity.epoch != identity.epoch:
            raise ProducerFenced(f"epoch {identity.epoch} of {transactional_id}, it is {producer.identity.epoch}")
        return producer

    def _end(self, transactional_id: str, producer: _Producer, outcome: Outcome) -> bool:
        transaction, producer.transaction = producer.transaction, None
        groups, producer.groups = producer.groups, set()
        if producer.timer is not None:
            producer.timer.cancel()
            producer.timer = None
        if transaction is None:
            return False
        transaction.outcome = outcome
        places: tuple[MemoryLog | str, ...] = (*transaction.logs, *sorted(groups))
        for place in places:
            delay = self.marker_delay(place)
            producer.unwritten += 1
            if delay > 0:
                self._timers.after(delay, partial(self._write_marker, producer, transaction, place))
            else:
                self._write_marker(producer, transaction, place)
        for call in self.on_end:
            call(transactional_id, transaction)
        return True

    def _write_marker(self, producer: _Producer, transaction: Transaction, place: MemoryLog | str) -> None:
        producer.unwritten -= 1
        if isinstance(place, str):
            self._publish(place, transaction)
            return
        place.close(transaction)
        for call in self.on_marker:
            call(place)
