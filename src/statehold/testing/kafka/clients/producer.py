"""The producers of one partition: the transactional one, and the one that writes full snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from statehold.api.output import Headers
from statehold.api.record import key_bytes
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, MessageRefused, OutcomeUnknown, TransactionAborted
from statehold.messages.sent import Sent
from statehold.ports import Cancelled, FullSink
from statehold.testing.kafka.clients.process import SimulatedProcess
from statehold.testing.kafka.cluster import NoSuchTopic
from statehold.testing.kafka.faults import CallFault
from statehold.testing.kafka.offsets import CommittedOffset
from statehold.testing.kafka.transactions import ProducerIdentity
from statehold.testing.memory.log import MemoryLog, Outcome
from statehold.testing.memory.message_size import require_size

T = TypeVar("T")
#: seconds of one try to fence, after which the caller may cancel
_FENCE_STEP = 0.05
#: seconds until a produce request that got no answer is sent again
_RESEND = 0.02
#: seconds between two tries to connect
_RECONNECT = 0.5


class _Queued(NamedTuple):
    topic: str
    partition: int
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int


class SimulatedTransactions:
    """`ports.Transactions`. Records wait in the client until its background thread sends them, `linger` later."""

    def __init__(
        self, process: SimulatedProcess, names: Names, partition: int, settings: Settings, attempt: str
    ) -> None:
        self._process, self._kafka, self._settings = process, process.kafka, settings
        self._id, self._group, self._partition = names.transactional_id(partition), names.group, partition
        self.attempt = attempt
        self.lineage = ""
        self._identity: ProducerIdentity | None = None
        self._queue: list[_Queued] = []
        self._joined: set[MemoryLog] = set()
        #: the open transaction has offsets, and sends are due
        self._sent_offsets = self._sends = False
        #: what the background thread met, for the next call
        self._failed: KafkaTrouble | None = None
        self._dropped = False
        self._suspicion = ""
        self._cuts = 0

    @property
    def suspicion(self) -> str:
        if not isinstance(self._failed, TransactionAborted):  # a poll shows what is fatal, and an abort ends the rest
            self._alive()
        self._process.alive()
        return self._suspicion

    def fence(self, cancelled: Callable[[], bool]) -> None:
        self._alive()
        deadline = self._kafka.clock() + self._settings.commit.timeout
        while True:
            if cancelled():
                raise Cancelled
            step = min(deadline, self._kafka.clock() + _FENCE_STEP)
            try:
                identity = self._request("fence", self._init, step)[0]
                # The coordinator answers when the markers of the transaction that it has aborted are written.
                self._wait_for_markers(step)
                self._identity = identity
            except OutcomeUnknown:
                if self._kafka.clock() >= deadline:
                    raise
                continue
            self._suspicion, self._cuts = "", self._process.cuts
            return

    def begin(self) -> None:
        self._alive()
        self._joined, self._cuts = set(), self._process.cuts

    def send(self, messages: Sequence[Sent]) -> None:
        for topic, value, key, partition, _, _, timestamp, headers in messages:
            blob = key_bytes(key)
            self._put(topic, partition, value, blob, headers or (), timestamp)

    def send_increment(self, topic: str, partition: int, payload: bytes) -> None:
        self._put(topic, partition, payload, None, (), 0)

    def send_offsets(self, positions: Mapping[str, int], membership: Any) -> None:
        places = {(topic, self._partition): offset for topic, offset in positions.items()}
        self._send_offsets(places, membership, self.lineage)

    def send_all_offsets(self, offsets: Mapping[tuple[str, int], int], membership: Any, lineage: str) -> None:
        self._alive()
        self._flush()
        self._send_offsets(offsets, membership, lineage)

    def commit(self) -> None:
        self._end("commit", Outcome.COMMITTED)

    def abort(self) -> None:
        self._queue.clear()
        if isinstance(self._failed, TransactionAborted):
            self._failed = None
        self._end("abort", Outcome.ABORTED)

    def deliver_log(self) -> None:
        self._process.alive()

    def drop(self) -> None:
        self._dropped = True
        self._queue.clear()

    def _put(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Headers, timestamp: int
    ) -> None:
        self._alive()
        require_size(topic, value, key, headers, self._settings.kafka.message_max_bytes)
        count = self._kafka.partitions(topic)
        if partition >= count > 0:
            raise MessageRefused(f"_UNKNOWN_PARTITION(-190): {topic}[{partition}]")
        self._queue.append(_Queued(topic, partition, value, key, headers, timestamp))
        if not self._sends:
            self._sends = True
            self._process.after(self._settings.output.linger, self._send_queued)

    def _send_queued(self) -> None:
        """Send what waits, on the background thread; the next call of the application gets an error."""
        self._sends = False
        if self._dropped or self._failed is not None:
            return
        fault = self._process.background_fault("send", self._id, self._partition) if self._queue else None
        if fault is not None and fault.error is not None:
            self._failed = TransactionAborted(str(fault.error))
            return
        if (fault is not None and fault.never) or self._kafka.transactions.ending(self._id):
            self._sends = True
            self._process.after(_RECONNECT if self._process.is_cut else _RESEND, self._send_queued)
            return
        try:
            while self._queue:
                self._write(self._queue[0])
                del self._queue[0]
        except NoSuchTopic:
            pass  # the client waits for the topic, up to the flush's deadline
        except KafkaTrouble as error:
            self._failed = error

    def _write(self, record: _Queued) -> None:
        count = self._kafka.partitions(record.topic)
        partition = record.partition
        if partition < 0 and count:
            partition = murmur2(record.key, count) if record.key is not None else len(self._joined) % count
        log = self._kafka.log(record.topic, partition)
        assert self._identity is not None, "the producer has not fenced"
        transaction = self._kafka.transactions.join(self._id, self._identity, log, member=log in self._joined)
        self._joined.add(log)
        self._kafka.append(log, record.value, record.key, list(record.headers), record.timestamp, transaction)

    def _flush(self) -> None:
        """Wait until the brokers have every record."""
        if not self._queue:
            return
        deadline = self._kafka.clock() + self._settings.commit.timeout
        self._request("flush", self._send_queued, deadline)
        while not self._process.wait(self._send_again, min(deadline, self._kafka.clock() + _RESEND)):
            if self._kafka.clock() >= deadline:
                raise self._fail(OutcomeUnknown("outputs were not acknowledged: does the topic exist?"))
        self._alive()

    def _send_again(self) -> bool:
        self._send_queued()
        return not self._queue or self._failed is not None

    def _send_offsets(self, offsets: Mapping[tuple[str, int], int], membership: Any, lineage: str) -> None:
        self._alive()
        identity = self._known()
        places = {place: CommittedOffset(offset, lineage) for place, offset in offsets.items()}

        def add() -> None:
            group = self._kafka.group(self._group)
            transaction = self._kafka.transactions.join_group(self._id, identity, self._group)
            if group is None:
                self._kafka.group_offsets(self._group).add(transaction, places)
            else:
                group.commit_in(transaction, membership, places)

        deadline = self._kafka.clock() + self._settings.commit.timeout
        try:
            self._request("offsets", add, deadline, partition=self._partition)
        except KafkaTrouble as error:
            raise self._fail(error) from None
        self._flush()

    def _end(self, name: str, outcome: Outcome) -> None:
        self._alive()
        identity = self._known()
        began = self._kafka.clock()
        deadline = began + self._settings.commit.timeout
        if outcome is Outcome.COMMITTED:
            try:
                self._flush()
            except TransactionAborted as error:
                raise self._fail(OutcomeUnknown(str(error))) from error
        if not self._in_transaction():
            return  # an empty transaction sends nothing
        end = self._kafka.transactions.end
        found = CallFault()
        try:
            _, found = self._request(name, lambda: end(self._id, identity, outcome), deadline)
            if found.copy:
                self._kafka.transactions.keep_copy(self._id, identity, outcome)
        except KafkaTrouble as error:
            raise self._fail(error) from None
        finally:
            took = self._kafka.clock() - began
            slow = min(self._settings.commit.slow, self._settings.kafka.socket_timeout)
            if found.copy and self._kafka.copies_show:
                self._suspicion = self._suspicion or "one commit or abort call sent 2 requests"
            if took > slow:
                self._suspicion = self._suspicion or f"a commit or abort took {took:.2f} s"
            if self._process.cuts != self._cuts:
                self._suspicion = self._suspicion or "a connection was lost"
        self._joined = set()
        self._sent_offsets = False

    def _in_transaction(self) -> bool:
        return bool(self._joined) or self._sent_offsets

    def _init(self) -> ProducerIdentity:
        return self._kafka.transactions.init(self._id, self._settings.commit.transaction_timeout)

    def _request(self, name: str, effect: Callable[[], T], deadline: float, partition: int = -1) -> tuple[T, CallFault]:
        def timed_out() -> OutcomeUnknown:
            return OutcomeUnknown(f"{name}: _TIMED_OUT(-185)")

        if name == "offsets":
            self._sent_offsets = True
        self._wait_for_markers(deadline)
        return self._process.request(
            name, effect, deadline=deadline, timed_out=timed_out, subject=self._id, partition=partition
        )

    def _wait_for_markers(self, deadline: float) -> None:
        """Repeat a request while the markers of the last transaction are not written (CONCURRENT_TRANSACTIONS)."""
        if not self._process.wait(lambda: not self._kafka.transactions.ending(self._id), deadline):
            raise OutcomeUnknown("CONCURRENT_TRANSACTIONS(51)")

    def _known(self) -> ProducerIdentity:
        if self._identity is None:
            raise OutcomeUnknown("_STATE(-172): the producer has not fenced")
        return self._identity

    def _fail(self, error: KafkaTrouble) -> KafkaTrouble:
        """Keep an error that every later call repeats."""
        self._failed = error
        return error

    def _alive(self) -> None:
        self._process.alive()
        if self._dropped:
            raise OutcomeUnknown("the producer was dropped")
        if self._failed is not None:
            raise self._failed


class SimulatedFullSink(FullSink):
    """`ports.FullSink` for the snapshot topic: records are acknowledged when the background thread has sent them."""

    def __init__(self, process: SimulatedProcess, topic: str, partition: int, linger: float) -> None:
        self._process, self._kafka = process, process.kafka
        self._topic, self._partition, self._linger = topic, partition, linger
        self._queue: list[bytes] = []
        self._offsets: list[int] = []
        self._refused = ""
        self._sends = self._closed = False

    def send(self, payload: bytes) -> None:
        self._process.alive()
        self._queue.append(payload)
        if not self._sends:
            self._sends = True
            self._process.after(self._linger, self._send_queued)

    def acknowledged(self, wait: float = 0.0) -> list[int]:
        self._process.alive()
        if wait > 0:
            deadline = self._kafka.clock() + wait
            self._process.wait(lambda: not self._queue or bool(self._refused), deadline)
        if self._refused:
            raise KafkaTrouble(f"a chunk was not written: {self._refused}")
        return self._offsets

    def close(self) -> None:
        self._closed = True
        self._queue.clear()

    def _send_queued(self) -> None:
        self._sends = False
        if self._closed or self._refused or not self._queue:
            return
        fault = self._process.background_fault("full", self._topic, self._partition)
        if fault.error is not None:
            self._refused = str(fault.error)
        elif fault.never:
            self._sends = True
            self._process.after(_RESEND, self._send_queued)
        else:
            self._write_all()

    def _write_all(self) -> None:
        try:
            log = self._kafka.log(self._topic, self._partition)
        except NoSuchTopic as error:
            self._refused = str(error)
            return
        while self._queue:
            self._offsets.append(self._kafka.append(log, self._queue[0]))
            del self._queue[0]
