"""The brokers: topics, transactions, groups, and what happens to them in time."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Literal

from statehold.api.output import Headers
from statehold.testing.kafka.classic_group import ClassicGroup
from statehold.testing.kafka.consumer_group import ConsumerProtocolGroup
from statehold.testing.kafka.faults import CallFault, PassTime, PortCall, Scheduler
from statehold.testing.kafka.future_events import FutureEvents
from statehold.testing.kafka.group import Group, GroupRejection
from statehold.testing.kafka.offsets import Place, StoredOffsets
from statehold.testing.kafka.transactions import TransactionCoordinator
from statehold.testing.memory.clock import ManualClock
from statehold.testing.memory.log import LogMessage, MemoryLog, Transaction


class NoSuchTopic(Exception):
    """The brokers do not know the topic, or not the partition."""


@dataclass
class SimulatedTopic:
    name: str
    id: str
    logs: list[MemoryLog]
    settings: dict[str, str] = field(default_factory=dict)


class SimulatedKafka:
    """One cluster. Every method is a request that the brokers answer at once; the clients of a process may wait."""

    #: seconds between two checks for records that are older than retention.ms
    retention_check = 300.0
    #: seconds of a member's session and heartbeats with the consumer protocol
    consumer_session = 45.0
    consumer_heartbeat = 5.0

    #: whether a producer notices that a commit or abort request was sent twice
    copies_show = True

    def __init__(self, clock: ManualClock | None = None, scheduler: Scheduler | None = None, seed: int = 0) -> None:
        self.clock = clock or ManualClock()
        self.timers = FutureEvents(self.clock)
        self.scheduler: Scheduler = scheduler or PassTime(self.clock, self.timers)
        #: makes topic ids, so that a schedule repeats them
        self._random = Random(seed)
        self._numbers = count(1)
        self.topics: dict[str, SimulatedTopic] = {}
        #: called for each record that is written
        self.on_append: list[Callable[[MemoryLog, LogMessage, Transaction | None], None]] = []
        self.offsets: dict[str, StoredOffsets] = {}
        self._groups: dict[str, Group] = {}
        self.transactions = TransactionCoordinator(self.timers, self._publish)
        #: who is called back when a partition may have something new: the process, and its function
        self._watchers: dict[Place, list[tuple[str, Callable[[], None]]]] = {}
        self.transactions.on_marker.append(lambda log: self._notify((log.topic, log.partition)))
        self._checks_retention = False

    def number(self) -> int:
        """Return a number that no other call returns."""
        return next(self._numbers)

    # Time

    def next_event(self) -> float | None:
        """Return when something happens by itself; None if nothing will."""
        return self.timers.next()

    def turn(self) -> None:
        """Let everything happen that is due now."""
        self.timers.run_due()

    def point(self, call: PortCall) -> CallFault | None:
        return self.scheduler.point(call)

    # Readers that follow

    def watch(self, place: Place, process: str, call: Callable[[], None]) -> None:
        """Call back when the partition may have something new to read."""
        self._watchers.setdefault(place, []).append((process, call))

    def unwatch(self, place: Place, process: str, call: Callable[[], None]) -> None:
        if (process, call) in (watchers := self._watchers.get(place, [])):
            watchers.remove((process, call))

    def watched_by(self, process: str) -> list[Place]:
        """Return the partitions whose news a process still waits for: an oracle for what it has not closed."""
        return [place for place, calls in self._watchers.items() if any(name == process for name, _ in calls)]

    def _notify(self, *places: Place) -> None:
        for place in places:
            for _, call in self._watchers.get(place, ()):
                call()

    # Topics

    def create_topic(self, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> bool:
        """Create a topic. Return False if it exists already."""
        if name in self.topics:
            return False
        topic_id = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        logs = [MemoryLog(name, partition, topic_id) for partition in range(partitions)]
        self.topics[name] = SimulatedTopic(name, topic_id, logs, dict(settings or {}))
        if "retention.ms" in self.topics[name].settings and not self._checks_retention:
            self._checks_retention = True
            self.timers.after(self.retention_check, self._retain)
        self._tell_groups(name)
        self._notify(*((name, partition) for partition in range(partitions)))
        return True

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and the offsets that groups have of it. Its open transactions continue elsewhere."""
        for log in self._topic(name).logs:
            self.transactions.leave(log)
        for offsets in self.offsets.values():
            offsets.forget(name)
        del self.topics[name]

    def grow_topic(self, name: str, partitions: int) -> None:
        topic = self._topic(name)
        topic.logs += [MemoryLog(name, p, topic.id) for p in range(len(topic.logs), partitions)]
        self._tell_groups(name)

    def partitions(self, name: str) -> int:
        return len(self.topics[name].logs) if name in self.topics else 0

    def log(self, topic: str, partition: int) -> MemoryLog:
        """:raises NoSuchTopic: it does not exist."""
        logs = self._topic(topic).logs
        if not 0 <= partition < len(logs):
            raise NoSuchTopic(f"UNKNOWN_TOPIC_OR_PART: {topic}[{partition}]")
        return logs[partition]

    def append(
        self,
        log: MemoryLog,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int = 0,
        transaction: Transaction | None = None,
    ) -> int:
        """Write a record and return its offset. `timestamp`: ms since 1970, 0 means now."""
        now = int(self.clock.wall() * 1000)
        logged_at = self.topics[log.topic].settings.get("message.timestamp.type") == "LogAppendTime"
        stamp = now if logged_at else timestamp or now
        offset = log.append(value, key, headers, stamp, transaction, stamped=logged_at)
        if transaction is None:
            self._notify((log.topic, log.partition))
        if self.on_append:
            message = next(log.entries(offset))[0]
            for call in self.on_append:
                call(log, message, transaction)
        return offset

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before an offset, also those of open transactions; -1 means the high watermark.

        An offset behind the high watermark deletes nothing (OFFSET_OUT_OF_RANGE).
        """
        log = self.log(topic, partition)
        if before <= log.high:
            log.truncate(log.high if before < 0 else before, also_open=True)

    def _topic(self, name: str) -> SimulatedTopic:
        if name not in self.topics:
            raise NoSuchTopic(f"UNKNOWN_TOPIC_OR_PART: {name}")
        return self.topics[name]

    def _retain(self) -> None:
        for topic in self.topics.values():
            if (kept := int(topic.settings.get("retention.ms", -1))) >= 0:
                oldest = int(self.clock.wall() * 1000) - kept
                for log in topic.logs:
                    found = log.first_after(oldest)
                    log.truncate(log.end if found is None else found)
        self.timers.after(self.retention_check, self._retain)

    # Groups

    def group_offsets(self, name: str) -> StoredOffsets:
        return self.offsets.setdefault(name, StoredOffsets())

    def group(self, name: str) -> Group | None:
        return self._groups.get(name)

    def group_of(self, name: str, kind: Literal["CLASSIC", "CONSUMER"], assignor: str = "cooperative-sticky") -> Group:
        """Return the group; an empty one changes its protocol.

        :raises GroupRejection: its members use the other protocol.
        """
        group = self._groups.get(name)
        if group is not None and group.members and group.kind != kind:
            raise GroupRejection("INCONSISTENT_GROUP_PROTOCOL")
        if group is None or group.kind != kind:
            arguments = name, self.timers, self.partitions, self.group_offsets(name)
            former = group
            if kind == "CLASSIC":
                group = ClassicGroup(*arguments)
            else:
                group = ConsumerProtocolGroup(*arguments)
                group.heartbeat_interval = self.consumer_heartbeat
            group.generation = former.generation if former is not None else 0
            self._groups[name] = group
        if isinstance(group, ClassicGroup) and not group.members:
            group.assignor = "range" if assignor == "range" else "cooperative-sticky"
        return group

    def committed(self, group: str, place: Place) -> int | None:
        """Return a group's offset for an oracle, without the offsets of open transactions."""
        found = self.group_offsets(group).committed.get(place)
        return found.offset if found is not None else None

    def _publish(self, group: str, transaction: Transaction) -> None:
        self.group_offsets(group).publish(transaction)

    def _tell_groups(self, topic: str) -> None:
        for group in self._groups.values():
            group.topic_changed(topic)
