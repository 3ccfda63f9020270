"""Interfaces to Kafka and the clock: each method states whether it blocks, what it raises, and its thread.

The Kafka adapter (`statehold.kafka`) and the test driver implement them. No other module imports confluent_kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol
from urllib.parse import urlsplit

from statehold.api.record import Message
from statehold.common.decoding import with_room
from statehold.messages.call_outcome import CALL_REQUESTS, call_request_of
from statehold.messages.command import OWN, WORKERS, Command, command_of
from statehold.messages.dead_letter import ADD, REQUESTS, AddRequest, add_request_of, request_of
from statehold.messages.pinned_command import Pinned, pin
from statehold.messages.retry_record import Retried
from statehold.messages.sent import Sent

#: Separates state generation and transaction number in the metadata of a group offset.
NUMBER = " n="
#: more digits than a transaction number has
_DIGITS = 20

#: Returns monotonic seconds.
Clock = Callable[[], float]


class OutOfRange(Exception):
    """The requested offset is not in the log (any more): read the bounds again."""


class Cancelled(Exception):
    """A long call ended because this process is losing the partition or stopping."""


class Membership(NamedTuple):
    """The newest group metadata. A worker whose commit is rejected waits for a greater version."""

    version: int
    #: confluent_kafka's group metadata, opaque.
    metadata: Any
    member_id: str


class Bounds(NamedTuple):
    """End of the changelog partition and start of the snapshot partition."""

    increment_end: int
    full_start: int


class Reader(Protocol):
    """Reads committed records of a partition without a group. One thread at a time."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return log start and end, including open transactions. Blocks; raises RestoreTimeout."""
        ...

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        """Yield the committed records of the offsets [start, end) in batches of up to `most`.

        Blocks. Raises OutOfRange if `start` was deleted, HangingTransaction if the last stable offset stays below
        `end`, RestoreTimeout if Kafka delivers nothing within the deadline, DamagedIncrement with the position of a
        record batch that is damaged on the broker's disk.
        """
        ...

    def cancelled(self) -> bool:
        """Return True once calls raise Cancelled; poll it while you wait for anything but Kafka."""
        ...

    def close(self) -> None: ...


class FollowingReader(Reader, Protocol):
    """A reader whose `bounds` end at the last stable offset, so that it never waits for an open transaction."""

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the last stable offset of each partition with one request. Blocks; raises KafkaTrouble."""
        ...


class Transactions(Protocol):
    """A transactional producer of one partition. One call at a time, on the partition's thread or its commit thread.

    After an exception only `drop` is allowed, and `abort` after TransactionAborted.
    """

    #: Id of the producer session.
    attempt: str
    #: Metadata of the group offsets: the state generation and, after NUMBER, the transaction; see `Noted`.
    lineage: str

    def fence(self, cancelled: Callable[[], bool]) -> None:
        """Call init_transactions; no older owner can commit afterwards. Blocks; raises KafkaTrouble, Cancelled."""
        ...

    def begin(self) -> None: ...

    def send(self, messages: Sequence[Sent]) -> None:
        """Queue outputs. Blocks while the queue is full; raises MessageRefused, TransactionAborted, ProducerFenced."""
        ...

    def send_increment(self, topic: str, partition: int, payload: bytes) -> None:
        """Queue one record for the changelog. Raises the errors of `send`."""
        ...

    def send_offsets(self, positions: Mapping[str, int], membership: Any) -> None:
        """Add the next offset of each input to the transaction, and wait until all outputs are written.

        Later records may only go to partitions that are in the transaction already, because a delayed request may have
        ended it (rule T1). Blocks; raises TransactionAborted (nothing was committed), OutcomeUnknown, ProducerFenced.
        """
        ...

    def send_all_offsets(self, offsets: Mapping[tuple[str, int], int], membership: Any, lineage: str) -> None:
        """Add offsets of the inputs, by topic and partition, with the state generation as metadata, for tools.

        Blocks; raises the errors of `send_offsets`.
        """
        ...

    def commit(self) -> None:
        """Commit. Blocks up to the commit deadline; raises OutcomeUnknown, ProducerFenced."""
        ...

    def abort(self) -> None:
        """Abort; return only on success. Blocks; raises OutcomeUnknown, ProducerFenced."""
        ...

    @property
    def suspicion(self) -> str:
        """Why this producer must be fenced before it is used again (rule T2); '' if it need not.

        A delayed commit or abort request may still arrive, or an abort may have left records open (KAFKA-20734).
        """
        ...

    def deliver_log(self) -> None:
        """Take the client's log lines, which an idle producer would keep in memory. Does not block or raise."""
        ...

    def drop(self) -> None:
        """Discard the producer without waiting and without a clean close (pitfall P8)."""
        ...


class FullSink(Protocol):
    """Writes one full snapshot (rule S3): `open`, its chunks, `seal`, its manifest. For Kafka: a producer.

    By default the chunks go to the snapshot topic.
    """

    def open(self, full: str, segments: int = 0) -> str:
        """Begin the full snapshot with this id. Return the location of its chunks, '' for the snapshot topic.

        `segments`: the number of segments of this id that exist already.
        """
        return ""

    @property
    def crowded(self) -> bool:
        """True if `send` would block, so the caller should wait for the next slice."""
        return False

    def seal(self) -> int:
        """End the chunks; only the manifest follows. Return the number of segments, 0 for the snapshot topic."""
        return 0

    def send(self, payload: bytes) -> None:
        """Queue a record for the snapshot topic. Blocks only while the queue is full."""
        ...

    def acknowledged(self, wait: float = 0.0) -> list[int]:
        """Return the offsets of the acknowledged records in sending order; -1 for a chunk outside Kafka.

        Blocks up to `wait` seconds. Raises KafkaTrouble if Kafka rejected a record; abandon the full snapshot then.
        """
        ...

    def close(self) -> None: ...


class Asked(NamedTuple):
    """A command of the control topic. `pinned` is None for statehold's own commands, which change no state."""

    command: Command
    pinned: Pinned | None
    #: the request of a `dlq add`, which is not pinned, because its transaction carries a delta
    dead_letter: AddRequest | None = None

    @classmethod
    def by(cls, message: Message) -> Asked | None:
        """Return the command of a control-topic record; None for any other record. The worker can decode it again.

        :raises BadCommand: the header is unreadable.
        """
        command = command_of(message)
        if command is None or command.name in WORKERS:
            return None
        if command.name == ADD:
            return cls(command, None, with_room(add_request_of, message))
        if command.name in REQUESTS:
            with_room(request_of, message)
        if command.name in CALL_REQUESTS:
            with_room(call_request_of, message)
        return cls(command, None if command.name in OWN else pin(message))


class Control(Protocol):
    """Commands of the control topic for one partition. Partition's thread."""

    def waiting(self, position: int) -> tuple[list[Asked], int]:
        """Return the commands from `position` of the control topic, and the position after them.

        Does not block; the first call starts reading.
        """
        ...

    def close(self) -> None: ...


class Delayed(Protocol):
    """Records of one retry topic for one partition. Partition's thread."""

    def due(self, position: int, now: int) -> tuple[list[Retried], int]:
        """Return the records from `position` that are due by `now` (ms since 1970), and the position after them.

        Does not block; the first call starts reading.
        """
        ...

    @property
    def held(self) -> int:
        """Number of records that were read and are not due, or not committed as processed yet. Any thread."""
        ...

    def close(self) -> None: ...


class InputReceiver(Protocol):
    """Takes the records of the inputs of one live partition, for a service with several. Reader threads."""

    def add(self, input: int, messages: Sequence[Message]) -> int:
        """Take the next records of the input with this index. Return how many of it wait to be handled."""
        ...

    def end(self, input: int) -> None:
        """Note that the broker has no committed record of this input behind those that came."""
        ...

    def held(self, input: int) -> int:
        """Return how many records of an input wait to be handled."""
        ...

    def fail(self, cause: BaseException) -> None:
        """Fail the partition: an input cannot be read on."""
        ...


class InputReading(Protocol):
    """All inputs of one live partition are being read. Partition's thread."""

    def close(self) -> None:
        """Stop. Does not block."""
        ...


class Noted(NamedTuple):
    """Metadata of a group offset: the state generation, and the transaction that committed it (-1: unknown)."""

    lineage: str
    n: int = -1

    @classmethod
    def of(cls, text: str) -> Noted:
        lineage, _, number = text.partition(NUMBER)
        return cls(lineage, int(number) if number.isdecimal() and len(number) < _DIGITS else -1)


class Access:
    """The principal's ACLs. This base class allows everything, for clusters without a login."""

    def explain(self, error: BaseException) -> str:
        """Return the missing ACL and its fix; '' if the error is not an authorization error. May block for seconds."""
        return ""

    def granted(self) -> bool:
        """Return True if every ACL that can be checked is granted again. May block for seconds."""
        return True


class Offsets(Protocol):
    """Requests about the group and the topics. Worker threads."""

    def committed(self, topic: str, partition: int) -> int | None:
        """Return the group's committed stable offset; None without one. Blocks; raises KafkaTrouble."""
        ...

    def lineages(self, topic: str, partitions: int) -> dict[int, Noted]:
        """Return the metadata of each partition's committed offset, where there is some.

        Does not wait for open transactions. Blocks; raises KafkaTrouble.
        """
        ...

    def is_member(self, member_id: str, topic: str, partition: int) -> bool:
        """Ask the coordinator whether this partition is assigned to this member now (rule T8). Blocks."""
        ...

    def ask_bounds(self, increment: str, full: str, partition: int) -> Callable[[float], Bounds | None]:
        """Request the end of the changelog and the start of the snapshot partition. Does not block.

        The returned function waits up to the given seconds. It returns None before the response, and raises
        KafkaTrouble if the request failed.
        """
        ...

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Request the deletion of the records before an offset, without waiting."""
        ...


class WorkerReport(NamedTuple):
    """A message of a worker to the manager."""

    partition: int
    #: stale = the broker rejects the group metadata, so the manager fetches it again; died = a bug ended the thread
    #: stuck = the handler call does not return, so the process has to end
    #: stop = the handler's policy says that the service stops with this error
    kind: Literal["live", "failed", "closed", "stale", "died", "stuck", "stop"]
    #: with "live": the next offset to read, and the stream that the mailbox now takes
    position: int = -1
    stream: int = -1
    cause: BaseException | None = None
    #: with "live": id of the input whose records the commit record counts
    topic_id: str = ""
    #: with "live": the worker reads its inputs itself, because there are several
    reads_itself: bool = False


class ConsumerTrouble(NamedTuple):
    """An error event of the consumer. `partition` is -1 if it concerns the whole client."""

    partition: int
    error: Exception
    #: True if the requested offset is not in the log.
    out_of_range: bool = False
    topic: str = ""


class InputTopic(NamedTuple):
    """An input topic as a consumer knows it."""

    name: str
    #: '' if unknown
    id: str = ""


class GroupMember(NamedTuple):
    """One member of a consumer group, as the group's coordinator describes it."""

    id: str
    #: `<service>@<advertised url>` for an instance with an ops server
    client_id: str
    #: as the broker sees it
    host: str
    #: its group.instance.id; "" for a dynamic member
    static_id: str
    #: of the topic that was asked about, ascending
    partitions: tuple[int, ...]
    #: what the group wants it to have once others have released it; None under the classic protocol
    target: tuple[int, ...] | None = None

    @property
    def url(self) -> str:
        """URL of its ops server; '' if it has none, because a client may join under any name."""
        found = self.client_id.partition("@")[2]
        try:
            parts = urlsplit(found)
        except ValueError:
            return ""
        return found if parts.scheme in ("http", "https") and parts.hostname else ""


class ConsumerGroup(NamedTuple):
    """A consumer group now, as its coordinator describes it."""

    #: in words, such as "stable" or "preparing rebalancing"; "dead" if the group does not exist
    state: str
    members: tuple[GroupMember, ...]
    #: "CLASSIC", "CONSUMER", or "" if the broker does not report it
    kind: str = ""
    assignor: str = ""
    #: operations that the asking principal may do on the group, in capitals; empty if it did not ask
    allowed: frozenset[str] = frozenset()


class Listener(Protocol):
    """The three rebalance callbacks. They run on the manager thread inside `consume`, and must not raise."""

    def on_assign(self, partitions: Sequence[int]) -> None: ...

    def on_revoke(self, partitions: Sequence[int]) -> None: ...

    def on_lost(self, partitions: Sequence[int]) -> None: ...


class GroupConsumer(Protocol):
    """The consumer of a service. Only the manager thread calls its methods."""

    def subscribe(self, listener: Listener) -> None: ...

    def consume(self, records: int, timeout: float) -> tuple[Sequence[Message], Sequence[ConsumerTrouble]]:
        """Poll. Blocks up to `timeout` seconds, and during the callbacks. Raises KafkaTrouble on a fatal error."""
        ...

    @property
    def input(self) -> InputTopic:
        """The input that the client reads from; another object when it changes.

        A new topic of the same name is known when the `consume` returns that may have brought its first record.
        """
        ...

    def assign(self, partitions: Sequence[int]) -> None:
        """Add partitions, paused: they deliver no records before `seek` and `resume`."""
        ...

    def unassign(self, partitions: Sequence[int]) -> None: ...

    def pause(self, partitions: Sequence[int]) -> None: ...

    def resume(self, partitions: Sequence[int]) -> None: ...

    def seek(self, partition: int, offset: int) -> None: ...

    def wake(self, positions: Mapping[int, int]) -> None:
        """Restart fetching from these offsets without delay, after a rebalance callback."""
        ...

    def membership(self) -> tuple[Any, str]:
        """Return the current group metadata and this member's id."""
        ...

    def rejoin(self) -> None:
        """Leave the group, also as a static member, and join again. Blocks while `on_revoke` drains every partition."""
        ...

    def close(self, timeout: float, *, leave: bool = False) -> bool:
        """Leave the group. A static member keeps its place until its session ends, unless `leave` is true.

        Returns False if that took longer than `timeout` seconds.
        """
        ...
