"""Simulates a Kafka cluster in memory and in one thread: epochs, transactions, group offsets, faults."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from statehold.errors import OutcomeUnknown, ProducerFenced, TransactionAborted
from statehold.testing.memory.clock import ManualClock
from statehold.testing.memory.log import MemoryLog, Outcome, Transaction

#: the calls that a fault can be planned for
Call = Literal["fence", "begin", "send", "increment", "offsets", "commit", "abort", "full", "ask"]


class Fault(NamedTuple):
    error: BaseException
    #: the call is done, only its answer is lost
    after: bool


class HeldEnd(NamedTuple):
    """A commit or abort request that the network delays; the client has sent it again and got its answer."""

    transactional_id: str
    epoch: int
    outcome: Outcome


@dataclass
class _Producer:
    epoch: int = -1
    transaction: Transaction | None = None


@dataclass
class MemoryBroker:
    """Holds the logs and decides what is visible. `fail`, `hold_next_end` and `generation` make trouble for tests."""

    clock: ManualClock
    logs: dict[tuple[str, int], MemoryLog] = field(default_factory=dict)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    #: metadata of each offset
    lineages: dict[tuple[str, int], str] = field(default_factory=dict)
    #: moves with each rebalance; offsets with another one are rejected
    generation: int = 1
    #: records per batch that a reader gives out
    read_batch: int = 100
    #: called with (topic, partition) when a reader asks for bounds and when it begins to read
    on_bounds: Callable[[str, int], None] | None = None
    on_read: Callable[[str, int], None] | None = None
    #: called before each call of a producer, with its name
    on_call: Callable[[Call], None] | None = None
    #: called when a record of a full snapshot is sent; acknowledgements wait while `hold_acks`
    on_chunk: Callable[[], None] | None = None
    hold_acks: bool = False
    held: list[HeldEnd] = field(default_factory=list)
    #: what a producer's suspicion says after its next end was held; empty: it did not notice
    suspicion: str = "a request was sent twice"
    _hold_next: bool = False
    _faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))
    _producers: dict[str, _Producer] = field(default_factory=lambda: defaultdict(_Producer))
    _attempts: int = 0

    def log(self, topic: str, partition: int) -> MemoryLog:
        found = self.logs.get((topic, partition))
        if found is None:
            found = self.logs[topic, partition] = MemoryLog(topic, partition)
        return found

    # Failures, on request

    def fail(self, call: Call, error: BaseException, *, after: bool = False, times: int = 1) -> None:
        """Make the next `times` calls of this kind raise `error`: before they do anything, or `after` they did it."""
        self._faults[call].extend([Fault(error, after)] * times)

    def hold_next_end(self) -> None:
        """Hold a copy of the next commit or abort request in the network until `release`. The call itself succeeds."""
        self._hold_next = True

    def release(self) -> None:
        """Deliver the held requests: each ends what its producer has open, if its epoch is still the same."""
        for held in self.held:
            if self._producers[held.transactional_id].epoch == held.epoch:
                self._end(held.transactional_id, held.outcome)
        self.held.clear()

    @contextmanager
    def call(self, name: Call) -> Iterator[None]:
        """Wrap a call of a client, so that a planned fault strikes it."""
        if self.on_call is not None:
            self.on_call(name)
        fault = self._faults[name].popleft() if self._faults[name] else None
        if fault is not None and not fault.after:
            raise fault.error
        yield
        if fault is not None:
            raise fault.error

    # Transactions

    def attempt(self) -> str:
        self._attempts += 1
        return f"attempt-{self._attempts}"

    def fence(self, transactional_id: str) -> int:
        """Do init_transactions: abort what is open, and begin an epoch that shuts older ones out."""
        producer = self._producers[transactional_id]
        self._end(transactional_id, Outcome.ABORTED)
        producer.epoch += 1
        return producer.epoch

    def join(self, transactional_id: str, epoch: int, log: MemoryLog | None, *, member: bool) -> Transaction:
        """Return the open transaction, with `log` in it. `member`: the client believes that it is in it already.

        :raises ProducerFenced: the epoch is old.
        :raises OutcomeUnknown: error 48, the partition has left the transaction.
        """
        producer = self._checked(transactional_id, epoch)
        transaction = producer.transaction
        if member and (transaction is None or (log is not None and log not in transaction.logs)):
            raise OutcomeUnknown("INVALID_TXN_STATE(48): the partition has left its transaction")
        if transaction is None:
            transaction = producer.transaction = Transaction()
        return transaction

    def join_offsets(self, transactional_id: str, epoch: int, generation: int) -> Transaction:
        """Do what `join` does, for the group's offsets.

        :raises TransactionAborted: stale, if the group has a newer generation.
        """
        self._checked(transactional_id, epoch)
        if generation != self.generation:
            raise TransactionAborted(f"ILLEGAL_GENERATION: {generation}, it is {self.generation}", stale=True)
        return self.join(transactional_id, epoch, None, member=False)

    def end(self, transactional_id: str, epoch: int, outcome: Outcome) -> bool:
        """Do EndTxn. Return True if the network holds a copy of the request."""
        self._checked(transactional_id, epoch)
        if not self._end(transactional_id, outcome):
            raise OutcomeUnknown("INVALID_TXN_STATE(48): no transaction is open")
        if not self._hold_next:
            return False
        self._hold_next = False
        self.held.append(HeldEnd(transactional_id, epoch, outcome))
        return True

    def _checked(self, transactional_id: str, epoch: int) -> _Producer:
        producer = self._producers[transactional_id]
        if producer.epoch != epoch:
            raise ProducerFenced(f"epoch {epoch} of {transactional_id}, it is {producer.epoch}")
        return producer

    def _end(self, transactional_id: str, outcome: Outcome) -> bool:
        producer = self._producers[transactional_id]
        transaction, producer.transaction = producer.transaction, None
        if transaction is None:
            return False
        transaction.outcome = outcome
        for log in transaction.logs:
            log.close(transaction)
        if outcome is Outcome.COMMITTED:
            self.offsets.update(transaction.offsets)
            self.lineages.update(transaction.lineages)
        return True
