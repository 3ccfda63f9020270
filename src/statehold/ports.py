"""What the parts need from Kafka and from the clock: each method says whether it blocks, what it raises, which thread.

The Kafka adapter (`statehold.kafka`) and the test driver implement these; nothing else in the house knows
confluent_kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from statehold.messages.command import OWN, TICK, Command, command_of
from statehold.messages.dead_letter import REQUESTS, request_of
from statehold.messages.pinned_command import Pinned, pin
from statehold.messages.retry_record import Retried
from statehold.output import Sent
from statehold.record import Message

#: between a lineage and a number, in what is noted beside a group offset
_NUMBER = " n="

#: seconds, monotonic
Clock = Callable[[], float]


class OutOfRange(Exception):
    """The asked offset is not (any more) in the log: plan again from a fresh end."""


class Cancelled(Exception):
    """A long call ended because the partition is leaving this process."""


class Membership(NamedTuple):
    """The manager's newest word on the group: a worker that is refused waits for a greater version."""

    version: int
    #: confluent_kafka's group metadata, opaque
    metadata: Any
    member_id: str


class Bounds(NamedTuple):
    increment_end: int
    full_start: int


class Reader(Protocol):
    """Reads a partition without a group, committed records only. Used by one thread at a time."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Log start and end (read uncommitted: open transactions count). Blocks; raises RestoreTimeout."""
        ...

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        """Batches of the committed records in [start, end), then stops; `most` records in one.

        Blocks; raises OutOfRange when `start` is gone, HangingTransaction when the last stable offset stays below
        `end`, RestoreTimeout when nothing comes within the deadline.
        """
        ...

    def cancelled(self) -> bool:
        """Whether its calls end with Cancelled now: for who waits for something else than Kafka meanwhile."""
        ...

    def close(self) -> None: ...


class FollowingReader(Reader, Protocol):
    """A reader whose `bounds` end where committed records do: it never waits for an open transaction."""

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """The last stable offset of each, by one question. Blocks; raises KafkaTrouble."""
        ...


class Transactions(Protocol):
    """A transactional producer of one partition, used by that partition's thread, or by a commit beside it: one call at
    a time.

    Any exception leaves it unusable but for `abort` (after TransactionAborted) and `drop`.
    """

    attempt: str
    #: `Noted.text` of the state that the offsets belong to, for `Offsets.lineages`
    lineage: str

    def fence(self, cancelled: Callable[[], bool]) -> None:
        """init_transactions: from here no older owner can commit. Blocks; raises KafkaTrouble, Cancelled."""
        ...

    def begin(self) -> None: ...

    def send(self, messages: Sequence[Sent]) -> None:
        """Queue outputs. Blocks while the queue is full; raises MessageRefused, TransactionAborted, ProducerFenced."""
        ...

    def send_increment(self, topic: str, partition: int, payload: bytes) -> None:
        """Queue one record of the increment; raises as `send`."""
        ...

    def send_offsets(self, position: int, membership: Any) -> None:
        """Put the offsets into the transaction, and wait until all outputs are on their partitions.

        What is sent after it goes to partitions that are in the transaction already: no other may join one that a
        delayed request has torn (rule T1). Blocks; raises TransactionAborted (nothing was committed), OutcomeUnknown or
        ProducerFenced.
        """
        ...

    def send_all_offsets(self, positions: Mapping[int, int], membership: Any, lineage: str) -> None:
        """For tools: the offsets of several partitions of the input, each with the lineage of its state beside it.

        Blocks; raises as `send_offsets`.
        """
        ...

    def commit(self) -> None:
        """Blocks up to the commit deadline. Raises OutcomeUnknown or ProducerFenced."""
        ...

    def abort(self) -> None:
        """Abort and return only on success. Blocks; raises OutcomeUnknown, ProducerFenced."""
        ...

    @property
    def tainted(self) -> str:
        """Why a delayed commit or abort request may still be under way (rule T2), or ''."""
        ...

    def drop(self) -> None:
        """Let go of it without waiting and without closing it in a clean way (pitfall P8)."""
        ...


class FullSink(Protocol):
    """Takes one full (rule S3): `open`, its chunks, `seal`, its manifest. For Kafka an idempotent, plain producer."""

    def open(self, full: str) -> str:
        """The full with this id begins; returns where its chunks will be, '' for the full topic."""
        ...

    @property
    def crowded(self) -> bool:
        """Sending would block: better wait for the next slice."""
        ...

    def seal(self) -> int:
        """There is no further chunk, only the manifest; in how many segments they are, 0 on the full topic."""
        ...

    def send(self, payload: bytes) -> None:
        """Queue a record to the full topic. Blocks only while the queue is full."""
        ...

    def acknowledged(self, wait: float = 0.0) -> list[int]:
        """Offsets of the acknowledged records so far, in the order they were sent; blocks `wait` seconds at most.

        A chunk that is not in Kafka counts as -1.

        Raises KafkaTrouble when one was refused: the full is given up.
        """
        ...

    def close(self) -> None: ...


class Asked(NamedTuple):
    """A command of the control topic; `pinned` is None where it is statehold's own, which changes no state."""

    command: Command
    pinned: Pinned | None

    @classmethod
    def by(cls, message: Message) -> Asked | None:
        """What a record of the control topic asks for; None for a record that is no command.

        :raises BadCommand: its header cannot be read.
        """
        command = command_of(message)
        if command is None or command.name == TICK:  # only a worker says how late it is
            return None
        if command.name in REQUESTS:
            request_of(message)
        return cls(command, None if command.name in OWN else pin(message))


class Control(Protocol):
    """Commands that come beside the input; for one partition, used by its thread."""

    def waiting(self, position: int) -> tuple[list[Asked], int]:
        """Those that have come at or after `position` of the control topic, and the position after them.

        Does not block; the first call begins to read.
        """
        ...

    def close(self) -> None: ...


class Delayed(Protocol):
    """Records of one retry topic; for one partition, used by its thread."""

    def due(self, position: int, now: int) -> tuple[list[Retried], int]:
        """Those at or after `position` that are due by `now` (milliseconds since 1970), and the position after them.

        Does not block; the first call begins to read.
        """
        ...

    @property
    def held(self) -> int:
        """Records that were read and whose time has not come, or that no mark has passed. Any thread."""
        ...

    def close(self) -> None: ...


class NoControl:
    """There is no control topic."""

    def waiting(self, position: int) -> tuple[list[Asked], int]:
        return [], position

    def close(self) -> None:
        """Nothing is open."""


class Noted(NamedTuple):
    """What stands beside a group offset: the lineage, and the transaction that committed it (-1: not told)."""

    lineage: str
    n: int = -1

    def text(self) -> str:
        return self.lineage if self.n < 0 else f"{self.lineage}{_NUMBER}{self.n}"

    @classmethod
    def of(cls, text: str) -> Noted:
        lineage, _, number = text.partition(_NUMBER)
        return cls(lineage, int(number) if number.isdecimal() else -1)


class Access:
    """What the brokers let us do. Where nobody asks for a login, everything."""

    def explain(self, error: BaseException) -> str:
        """Who may not do what, and what mends it; '' where this error is no refusal. May block for seconds."""
        return ""

    def granted(self) -> bool:
        """Whether all that can be asked for is allowed again. May block for seconds."""
        return True


class Offsets(Protocol):
    """Questions about the group and the topics, asked from worker threads."""

    def committed(self, topic: str, partition: int) -> int | None:
        """The group's committed offset, with stable offsets; None where there is none. Blocks; raises KafkaTrouble."""
        ...

    def lineages(self, topic: str, partitions: int) -> dict[int, Noted]:
        """What each partition's owner noted beside its last committed offset, where there is something.

        Waits for no open transaction. Blocks; raises KafkaTrouble.
        """
        ...

    def is_member(self, member_id: str, topic: str, partition: int) -> bool:
        """Whether the group's coordinator, asked now, has this partition assigned to this member (rule T8). Blocks."""
        ...

    def ask_bounds(self, increment: str, full: str, partition: int) -> Callable[[float], Bounds | None]:
        """Ask for the end of one topic and the start of the other; does not block.

        The returned function waits the given seconds and answers None while nothing is known; it raises KafkaTrouble
        when the question failed.
        """
        ...

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Ask for the deletion of what lies before an offset, and do not wait for it."""
        ...


class ConsumerTrouble(NamedTuple):
    """A consumer's event that is no record. `partition` is -1 when it concerns the whole client."""

    partition: int
    error: Exception
    #: the position that is asked for is not in the log
    out_of_range: bool = False
    topic: str = ""


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

    @property
    def url(self) -> str:
        """URL of its ops server; '' if it has none."""
        return self.client_id.partition("@")[2]


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
    """The three rebalance callbacks; run on the manager thread inside `consume`. They must not raise."""

    def on_assign(self, partitions: Sequence[int]) -> None: ...

    def on_revoke(self, partitions: Sequence[int]) -> None: ...

    def on_lost(self, partitions: Sequence[int]) -> None: ...


class GroupConsumer(Protocol):
    """The one consumer of a service; every method belongs to the manager thread (invariant 4)."""

    def subscribe(self, listener: Listener) -> None: ...

    def consume(self, records: int, timeout: float) -> tuple[Sequence[Message], Sequence[ConsumerTrouble]]:
        """Blocks `timeout` seconds at most, and for the callbacks. Raises KafkaTrouble on a fatal error."""
        ...

    def assign(self, partitions: Sequence[int]) -> None:
        """Take partitions in addition, paused; they deliver nothing until `seek` and `resume`."""
        ...

    def unassign(self, partitions: Sequence[int]) -> None: ...

    def pause(self, partitions: Sequence[int]) -> None: ...

    def resume(self, partitions: Sequence[int]) -> None: ...

    def seek(self, partition: int, offset: int) -> None: ...

    def wake(self, positions: Mapping[int, int]) -> None:
        """After a callback: fetch on from these offsets without delay. Records that come later begin there."""
        ...

    def membership(self) -> tuple[Any, str]:
        """The group metadata of now, and our member id."""
        ...

    def close(self, timeout: float, *, leave: bool = False) -> bool:
        """Leave the group; a static member only stops, and keeps its place until its session ends, unless `leave`.

        False when that took longer than `timeout` seconds.
        """
        ...
