"""A Kafka on which contracts run: the simulated one, or real brokers behind a proxy. Both give out the same ports."""

from __future__ import annotations

import copy
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from statehold.api.record import Message
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.messages.sent import Sent
from statehold.ports import (
    ConsumerGroup,
    Control,
    Delayed,
    FollowingReader,
    FullSink,
    GroupConsumer,
    InputReading,
    InputReceiver,
    Offsets,
    Reader,
    Transactions,
)

#: seconds of a member's session, of a transaction and of a suspected hang: far below what settings allow, so that a
#: contract about them ends soon
SESSION, HEARTBEAT, TRANSACTION, HANGING = 2.0, 0.3, 2.0, 1.0
#: seconds that a real broker may take for what it does at once
PATIENCE = 15.0


class World(ABC):
    """One cluster. The thread of the test uses it."""

    #: "simulated", or the version of the real brokers
    version: str
    servers = ""

    def settings(self, **sections: Mapping[str, Any]) -> Settings:
        """Return settings with these values, also outside of the limits that users have."""
        quick: dict[str, dict[str, Any]] = {
            "kafka": {"bootstrap_servers": self.servers, "socket_timeout": 1.5},
            "commit": {"transaction_timeout": 30.0, "timeout": 20.0},
            "group": {"session_timeout": SESSION, "heartbeat_interval": HEARTBEAT},
            "restore": {"hanging_after": HANGING, "deadline": 8.0},
            "output": {"linger": 0.0},
        }
        made = copy.copy(Settings())
        if "transaction_timeout" in sections.get("commit", {}):
            quick["commit"]["timeout"] = sections["commit"]["transaction_timeout"]
        for section in {**quick, **sections}:
            changed = copy.copy(getattr(made, section))
            for name, value in {**quick.get(section, {}), **sections.get(section, {})}.items():
                object.__setattr__(changed, name, value)
            object.__setattr__(made, section, changed)
        return made

    def names(self, partitions: int = 1, inputs: int = 1) -> Names:
        """Create the topics of a new service and return its names."""
        run = uuid.uuid4().hex[:10]
        others = tuple(f"in{index}-{run}" for index in range(1, inputs))
        names = Names(f"s-{run}", f"in-{run}", others=others)
        for topic in (*names.inputs, names.changelog, names.snapshot, names.control):
            self.create(topic, partitions)
        return names

    def topic(self, partitions: int = 1, **settings: str) -> str:
        """Create a topic with a new name."""
        name = f"t-{uuid.uuid4().hex[:10]}"
        self.create(name, partitions, {key.replace("_", "."): value for key, value in settings.items()})
        return name

    def producer(self, names: Names, partition: int = 0, **commit: float) -> Transactions:
        """Return a producer that has fenced."""
        made = self.transactions(names, partition, **commit)
        made.fence(lambda: False)
        return made

    def writer(self, names: Names | None = None, topic: str = "", partition: int = 0, **commit: float) -> Writer:
        """Return a producer that has fenced, with a new service and a new topic unless they are given."""
        return Writer(self, names or self.names(), topic or self.topic(), partition, **commit)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        """Let time pass until the condition holds."""
        deadline = self.now() + seconds
        while not condition():
            assert self.now() < deadline, f"waited {seconds:g} s for {what}"
            self.pass_time(0.02)

    def visible(self, topic: str, partition: int = 0, names: Names | None = None) -> list[bytes]:
        """Return the values that a read_committed reader finds now."""
        reader = self.following_reader(names)
        try:
            start, end = reader.bounds(topic, partition)
            return [m.value() for batch in reader.read(topic, partition, start, end) for m in batch]
        finally:
            reader.close()

    def sees(self, topic: str, *values: bytes, partition: int = 0) -> bool:
        """Return whether exactly these values become visible; markers may be written after the commit's answer."""
        found: list[list[bytes]] = []

        def all_there() -> bool:
            found.append(self.visible(topic, partition))
            return len(found[-1]) >= len(values)

        self.until(all_there, f"{values} in {topic}")
        assert found[-1] == list(values)
        return True

    def end(self, topic: str, partition: int = 0) -> int:
        """Return the end of the log, open transactions included."""
        return self.reader().bounds(topic, partition)[1]

    def start(self, topic: str, partition: int = 0) -> int:
        return self.reader().bounds(topic, partition)[0]

    # Time

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def pass_time(self, seconds: float) -> None: ...

    @abstractmethod
    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Do it while the test waits for something."""

    # The cluster

    @abstractmethod
    def create(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> bool: ...

    @abstractmethod
    def delete(self, topic: str) -> None: ...

    @abstractmethod
    def grow(self, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def topic_id(self, topic: str) -> str | None:
        """Return the id of a topic; None if it does not exist."""

    @abstractmethod
    def topic_partitions(self, topic: str) -> int: ...

    @abstractmethod
    def topic_settings(self, topic: str) -> Mapping[str, str]: ...

    @abstractmethod
    def write(
        self,
        topic: str,
        values: Iterable[bytes | None],
        partition: int = 0,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        timestamp: int = 0,
    ) -> list[int]:
        """Write records outside of transactions and return their offsets."""

    # Ports

    @abstractmethod
    def transactions(self, names: Names, partition: int = 0, **commit: float) -> Transactions: ...

    @abstractmethod
    def reader(self, names: Names | None = None, cancelled: Callable[[], bool] = lambda: False) -> Reader: ...

    @abstractmethod
    def following_reader(self, names: Names | None = None) -> FollowingReader: ...

    @abstractmethod
    def full_sink(self, topic: str, partition: int = 0) -> FullSink: ...

    @abstractmethod
    def offsets(self, names: Names) -> Offsets: ...

    @abstractmethod
    def describe_group(self, names: Names) -> ConsumerGroup: ...

    @abstractmethod
    def consumer(self, names: Names, process: str, **group: Any) -> GroupConsumer: ...

    @abstractmethod
    def no_member(self, names: Names) -> Any:
        """Return group metadata of a client that is no member of the group."""

    @abstractmethod
    def control(self, names: Names, partition: int, wake: Callable[[], None]) -> Control: ...

    @abstractmethod
    def delayed(self, names: Names, topic: str, partition: int) -> Delayed: ...

    @abstractmethod
    def read_inputs(
        self, names: Names, partition: int, positions: Mapping[str, int], ids: Mapping[str, str], to: InputReceiver
    ) -> InputReading: ...

    # Trouble

    @abstractmethod
    def copy_next_end(self) -> Callable[[], None]:
        """Delay a copy of the next commit or abort request; the producer sends it again.

        The copy arrives when the result is called.
        """

    @abstractmethod
    def crash(self, process: str) -> None:
        """Let a process end without a word to the brokers."""

    @abstractmethod
    def silence(self, process: str) -> None:
        """Let no heartbeat of a process reach the brokers, for longer than its session."""

    @abstractmethod
    def close(self) -> None: ...


def sent(topic: str, *values: bytes | None, partition: int = 0, key: bytes | None = None) -> list[Sent]:
    """Return output records for `Transactions.send`."""
    return [(topic, value, key, partition, None, None, 0, None) for value in values]


class Writer:
    """The fenced producer of a partition, the topic to which it writes, and what a test asks about both."""

    def __init__(self, world: World, names: Names, topic: str, partition: int = 0, **commit: float) -> None:
        self.world, self.names, self.topic, self.partition = world, names, topic, partition
        self.port = world.producer(names, partition, **commit)

    def successor(self) -> Writer:
        """Fence this producer with a new one."""
        return Writer(self.world, self.names, self.topic, self.partition)

    def begin(self) -> Writer:
        self.port.begin()
        return self

    def send(self, *values: bytes | None, partition: int = 0) -> Writer:
        self.port.send(sent(self.topic, *values, partition=partition))
        return self

    def send_offset(self, position: int, metadata: Any = None) -> Writer:
        """Send the offset of the input, as no member unless metadata are given."""
        self.port.send_offsets({self.names.input: position}, metadata or self.world.no_member(self.names))
        return self

    def open(self, *values: bytes, also: Sequence[Sent] = (), position: int = 1) -> Writer:
        """Begin a transaction with these records and an offset, so that the brokers know it."""
        self.port.begin()
        self.port.send([*sent(self.topic, *values), *also])
        return self.send_offset(position)

    def commit(self, *values: bytes) -> None:
        """Send these values, if any, and commit."""
        if values:
            self.send(*values)
        self.port.commit()

    def abort(self) -> None:
        self.port.abort()

    # Questions

    def bounds(self) -> tuple[int, int]:
        """Return start and end of what a read_committed reader may read."""
        return self.world.following_reader().bounds(self.topic, 0)

    def visible(self) -> list[bytes]:
        return self.world.visible(self.topic)

    def sees(self, *values: bytes) -> bool:
        return self.world.sees(self.topic, *values)

    def committed(self) -> int | None:
        return self.world.offsets(self.names).committed(self.names.input, self.partition)

    def end(self, partition: int = 0) -> int:
        return self.world.end(self.topic, partition)

    def wait_for_end(self, offset: int, partition: int = 0) -> None:
        """Wait for the marker, behind which the log ends at this offset."""
        self.world.until(lambda: self.end(partition) == offset, f"the marker before {offset} of partition {partition}")


class Member:
    """A process of a group with the simplest listener: it assigns, and notes what happens."""

    def __init__(self, world: World, names: Names, process: str, **group: Any) -> None:
        self.world, self.names, self.process = world, names, process
        self.consumer = world.consumer(names, process, **group)
        self.owned: set[int] = set()
        self.events: list[tuple[Literal["assign", "revoke", "lost"], tuple[int, ...]]] = []
        self.messages: list[Message] = []
        self.troubles: list[Any] = []
        #: called at the begin of a revocation
        self.drain: Callable[[], object] = lambda: None

    def join(self) -> Member:
        self.consumer.subscribe(self)
        return self

    def poll(self, timeout: float = 0.05, records: int = 1000) -> None:
        messages, troubles = self.consumer.consume(records, timeout)
        self.messages += messages
        self.troubles += troubles

    @property
    def metadata(self) -> Any:
        return self.consumer.membership()[0]

    def values(self) -> list[bytes]:
        return [message.value() for message in self.messages]

    def read_from(self, offset: int, partition: int = 0) -> None:
        self.consumer.resume([partition])
        self.consumer.seek(partition, offset)

    def on_assign(self, partitions: Sequence[int]) -> None:
        self.events.append(("assign", tuple(sorted(partitions))))
        self.owned |= set(partitions)
        self.consumer.assign(partitions)

    def on_revoke(self, partitions: Sequence[int]) -> None:
        self.drain()
        self._release("revoke", partitions)

    def on_lost(self, partitions: Sequence[int]) -> None:
        self._release("lost", partitions)

    def _release(self, kind: Literal["revoke", "lost"], partitions: Sequence[int]) -> None:
        self.events.append((kind, tuple(sorted(partitions))))
        self.owned -= set(partitions)
        self.consumer.unassign(partitions)

    def released(self, kind: str) -> set[int]:
        return {partition for each, partitions in self.events if each == kind for partition in partitions}


def poll_until(members: Sequence[Member], condition: Callable[[], bool], what: str, seconds: float = 25.0) -> None:
    """Poll these members in turn until the condition holds."""
    world = members[0].world
    deadline = world.now() + seconds
    while not condition():
        assert world.now() < deadline, f"waited {seconds:g} s for {what}: {[(m.process, m.events) for m in members]}"
        for member in members:
            member.poll(0.05 / len(members))


def settled(*members: Member, partitions: int) -> None:
    """Poll until the members own all partitions, none of them twice, and nothing changes for two heartbeats."""
    world = members[0].world

    def complete() -> bool:
        owned = [partition for member in members for partition in member.owned]
        everyone = partitions < len(members) or all(member.owned for member in members)
        return sorted(owned) == list(range(partitions)) and everyone

    poll_until(members, complete, "an owner of each partition")
    while True:
        seen = [len(member.events) for member in members]
        quiet = world.now() + 2.5 * HEARTBEAT
        poll_until(members, lambda until=quiet: world.now() >= until, "two heartbeats")  # type: ignore[misc]
        if complete() and seen == [len(member.events) for member in members]:
            return


class Group:
    """A service whose members have the same group settings."""

    def __init__(self, world: World, partitions: int, kind: Mapping[str, Any]) -> None:
        self.world, self.partitions, self.kind = world, partitions, kind
        self.names = world.names(partitions)

    def join(self, process: str, **own: Any) -> Member:
        """Join with a new member, which settings of its own may distinguish, and do not wait."""
        return Member(self.world, self.names, process, **own, **self.kind).join()

    def settle(self, *members: Member) -> None:
        settled(*members, partitions=self.partitions)

    def one(self, process: str = "a", **own: Any) -> Member:
        """Return a member that alone owns every partition."""
        member = self.join(process, **own)
        self.settle(member)
        return member

    def in_turn(self) -> tuple[Member, Member]:
        """Return two members that share the partitions; the first had them all when the second joined."""
        first, second = self.one(), self.join("b")
        self.settle(first, second)
        return first, second

    def together(self, *instances: str) -> tuple[Member, Member]:
        """Return two members that joined together and share the partitions; static ones have names."""
        first, second = (
            self.join(process, **({"instance_id": instance} if instance else {}))
            for process, instance in zip("ab", instances or ("", ""), strict=True)
        )
        self.settle(first, second)
        return first, second

    def described(self) -> ConsumerGroup:
        """Return the brokers' description of the group after its rebalance."""
        self.world.until(lambda: self.world.describe_group(self.names).state == "stable", "a stable group")
        return self.world.describe_group(self.names)

    def writer(self) -> Writer:
        return Writer(self.world, self.names, self.world.topic())
