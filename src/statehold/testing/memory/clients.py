"""Implements the ports of statehold on a `MemoryBroker`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from statehold.api.output import Headers
from statehold.api.record import Message, key_bytes
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.errors import OutcomeUnknown
from statehold.messages.command import BadCommand
from statehold.messages.retry_record import Retried
from statehold.messages.sent import Sent
from statehold.ports import Asked, Bounds, Cancelled, FullSink, Noted
from statehold.testing.memory.broker import MemoryBroker
from statehold.testing.memory.log import MemoryLog, Outcome
from statehold.testing.memory.message_size import ANY_SIZE, require_size


class MemoryTransactions:
    """Implements `ports.Transactions`."""

    def __init__(
        self, broker: MemoryBroker, names: Names, partition: int, most: int = ANY_SIZE, partitions: int = 1
    ) -> None:
        """`partitions`: of the inputs, and so of the topics of each `Rekey`."""
        self._broker, self._id = broker, names.transactional_id(partition)
        self._rekeys, self._partitions = names.rekeys, partitions
        self._partition, self._most = partition, most
        self._epoch = -2
        self._joined: set[MemoryLog] = set()
        self._dropped = False
        self.attempt = broker.attempt()
        self.suspicion = self.lineage = ""

    def fence(self, cancelled: Callable[[], bool]) -> None:
        with self._broker.call("fence"):
            self._epoch = self._broker.fence(self._id)

    def begin(self) -> None:
        with self._broker.call("begin"):
            self._joined = set()

    def send(self, messages: Sequence[Sent]) -> None:
        for topic, value, key, partition, _, _, timestamp, headers in messages:
            blob = key_bytes(key)
            moment = timestamp or int(self._broker.clock.wall() * 1000)
            with self._broker.call("send"):
                # One log per output topic, so that its order is the order of sending.
                own = topic in self._rekeys
                to = murmur2(blob, self._partitions) if own and partition < 0 else partition
                log = self._broker.log(topic, to if own else 0)
                self._append(log, value, blob, list(headers or ()), moment, to)

    def send_increment(self, topic: str, partition: int, payload: bytes) -> None:
        with self._broker.call("increment"):
            self._append(self._broker.log(topic, partition), payload)

    def send_offsets(self, positions: Mapping[str, int], membership: Any) -> None:
        self._add_offsets({(topic, self._partition): at for topic, at in positions.items()}, membership, self.lineage)

    def send_all_offsets(self, offsets: Mapping[tuple[str, int], int], membership: Any, lineage: str) -> None:
        self._add_offsets(offsets, membership, lineage)

    def _add_offsets(self, offsets: Mapping[tuple[str, int], int], membership: Any, lineage: str) -> None:
        self._alive()
        with self._broker.call("offsets"):
            transaction = self._broker.join_offsets(self._id, self._epoch, membership)
            transaction.offsets.update(offsets)
            transaction.lineages.update(dict.fromkeys(offsets, lineage))

    def commit(self) -> None:
        self._alive()
        with self._broker.call("commit"):
            self._end(Outcome.COMMITTED)

    def abort(self) -> None:
        self._alive()
        with self._broker.call("abort"):
            self._end(Outcome.ABORTED)

    def deliver_log(self) -> None:
        pass

    def drop(self) -> None:
        self._dropped = True

    def _append(
        self,
        log: MemoryLog,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int = 0,
        partition: int | None = None,
    ) -> None:
        self._alive()
        require_size(log.topic, value, key, headers, self._most)
        transaction = self._broker.join(self._id, self._epoch, log, member=log in self._joined)
        self._joined.add(log)
        log.append(value, key, headers, timestamp, transaction, partition)

    def _end(self, outcome: Outcome) -> None:
        if self._broker.end(self._id, self._epoch, outcome):
            self.suspicion = self._broker.suspicion

    def _alive(self) -> None:
        if self._dropped:
            raise OutcomeUnknown("the producer was dropped")


class MemoryReader:
    """Implements `ports.Reader`."""

    def __init__(self, broker: MemoryBroker, cancelled: Callable[[], bool]) -> None:
        self._broker, self._cancelled = broker, cancelled

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        if self._broker.on_bounds is not None:
            self._broker.on_bounds(topic, partition)
        log = self._broker.log(topic, partition)
        return log.start, log.end

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        if self._broker.on_read is not None:
            self._broker.on_read(topic, partition)
        for batch in self._broker.log(topic, partition).read(start, end, min(most, self._broker.read_batch)):
            if self._cancelled():
                raise Cancelled
            yield batch

    def cancelled(self) -> bool:
        return self._cancelled()

    def close(self) -> None:
        pass


class StableMemoryReader(MemoryReader):
    """Implements `ports.FollowingReader`."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        log = self._broker.log(topic, partition)
        return log.start, log.stable

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        return {partition: self._broker.log(topic, partition).stable for partition in partitions}


class MemoryFullSink(FullSink):
    """Implements `ports.FullSink`."""

    def __init__(self, broker: MemoryBroker, topic: str, partition: int, most: int = ANY_SIZE) -> None:
        self._broker, self._log, self._most = broker, broker.log(topic, partition), most
        self._offsets: list[int] = []

    def send(self, payload: bytes) -> None:
        require_size(self._log.topic, payload, None, None, self._most)
        with self._broker.call("full"):
            self._offsets.append(self._log.append(payload))
        if self._broker.on_chunk is not None:
            self._broker.on_chunk()

    def acknowledged(self, wait: float = 0.0) -> list[int]:
        return [] if self._broker.hold_acks else self._offsets

    def close(self) -> None:
        pass


class MemoryControl:
    """Implements `ports.Control`: a record of the control topic is there at once."""

    def __init__(self, broker: MemoryBroker, names: Names, partition: int) -> None:
        self._log = broker.log(names.control, partition)

    def waiting(self, position: int) -> tuple[list[Asked], int]:
        messages = list(self._log.committed(position))
        end = (messages[-1].offset() or 0) + 1 if messages else position
        return [asked for asked in map(_asked, messages) if asked is not None], end

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _asked(message: Message) -> Asked | None:
    """Return the command, or None if the record is no command. The real feed logs and skips such a record."""
    try:
        return Asked.by(message)
    except BadCommand:
        return None


class MemoryDelayed:
    """Implements `ports.Delayed`."""

    def __init__(self, broker: MemoryBroker, topic: str, inputs: Sequence[str], partition: int) -> None:
        self._log, self._inputs, self._partition = broker.log(topic, 0), inputs, partition
        self._passed = 0

    def due(self, position: int, now: int) -> tuple[list[Retried], int]:
        self._passed, found = position, []
        for retried in self._waiting():
            if retried.due > now:
                break
            found.append(retried)
        return found, found[-1].at + 1 if found else position

    @property
    def held(self) -> int:
        return len(list(self._waiting()))

    def _waiting(self) -> Iterator[Retried]:
        """Yield the retry records of this partition. One log has those of all partitions."""
        mine = (each for each in self._log.committed(self._passed) if each.partition() == self._partition)
        return (retried for message in mine if (retried := Retried.by(message, self._inputs)) is not None)

    def close(self) -> None:
        """Do nothing: nothing is open."""


class MemoryOffsets:
    """Implements `ports.Offsets`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        #: the answer of the group's coordinator about this member
        self.owner = True

    def committed(self, topic: str, partition: int) -> int | None:
        return self._broker.offsets.get((topic, partition))

    def lineages(self, topic: str, partitions: int) -> dict[int, Noted]:
        return {
            partition: Noted.of(noted) for (name, partition), noted in self._broker.lineages.items() if name == topic
        }

    def is_member(self, member_id: str, topic: str, partition: int) -> bool:
        return self.owner

    def ask_bounds(self, increment: str, full: str, partition: int) -> Callable[[float], Bounds | None]:
        with self._broker.call("ask"):
            end = self._broker.log(increment, partition).end
        start = self._broker.log(full, partition).start
        return lambda wait: Bounds(end, start)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._broker.log(topic, partition).truncate(before)
