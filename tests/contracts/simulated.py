"""The simulated Kafka as a world of contracts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from tests.contracts.world import HEARTBEAT, SESSION, World

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.ports import ConsumerGroup, InputReceiver
from statehold.testing.kafka.clients.admin import SimulatedAdmin
from statehold.testing.kafka.clients.clients import Clients
from statehold.testing.kafka.clients.consumer import SimulatedGroupConsumer
from statehold.testing.kafka.clients.feeds import SimulatedControl, SimulatedDelayed, SimulatedInputReading
from statehold.testing.kafka.clients.producer import SimulatedFullSink, SimulatedTransactions
from statehold.testing.kafka.clients.reader import SimulatedFollowingReader, SimulatedReader
from statehold.testing.kafka.cluster import SimulatedKafka
from statehold.testing.kafka.faults import CallFault, PassTime
from statehold.testing.kafka.offsets import GroupMetadata

_NAMES = Names("tools", "tools")


class Simulated(World):
    version = "simulated"

    def __init__(self, markers: float = 0.0) -> None:
        """`markers`: seconds until a marker is written, at most; not the same in each partition."""
        self.kafka = SimulatedKafka()
        delays = Random(1)
        self.kafka.transactions.marker_delay = lambda place: delays.random() * markers
        self.kafka.consumer_session, self.kafka.consumer_heartbeat = SESSION, HEARTBEAT
        self.kafka.retention_check = 0.5
        self.processes: dict[str, list[Clients]] = {}

    def _of(self, names: Names | None, process: str = "main", settings: Settings | None = None) -> Clients:
        made = Clients(self.kafka, process, names or _NAMES, settings or self.settings())
        self.processes.setdefault(process, []).append(made)
        return made

    def now(self) -> float:
        return self.kafka.clock()

    def pass_time(self, seconds: float) -> None:
        self.kafka.scheduler.wait(lambda: False, self.kafka.clock() + seconds)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        self.kafka.timers.after(seconds, call)

    def create(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> bool:
        return self._admin.create(topic, partitions, 1, settings or {})

    def delete(self, topic: str) -> None:
        self._admin.delete(topic)

    def grow(self, topic: str, partitions: int) -> None:
        self._admin.grow(topic, partitions)

    def topic_id(self, topic: str) -> str | None:
        found = self._admin.describe([topic])[topic]
        return found.id if found is not None else None

    def topic_partitions(self, topic: str) -> int:
        found = self._admin.describe([topic])[topic]
        assert found is not None
        return found.partitions

    def topic_settings(self, topic: str) -> Mapping[str, str]:
        return self._admin.settings(topic)

    @property
    def _admin(self) -> SimulatedAdmin:
        return self._of(None).admin()

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
        log = self.kafka.log(topic, partition)
        return [self.kafka.append(log, value, key, headers, timestamp) for value in values]

    def transactions(self, names: Names, partition: int = 0, **commit: float) -> SimulatedTransactions:
        return self._of(names, settings=self.settings(commit=commit)).transactions(partition)

    def reader(self, names: Names | None = None, cancelled: Callable[[], bool] = lambda: False) -> SimulatedReader:
        return self._of(names).reader(cancelled)

    def following_reader(self, names: Names | None = None) -> SimulatedFollowingReader:
        return self._of(names).following_reader()

    def full_sink(self, topic: str, partition: int = 0) -> SimulatedFullSink:
        return self._of(None).full_sink(partition, topic)

    def offsets(self, names: Names) -> SimulatedAdmin:
        return self._of(names).admin()

    def describe_group(self, names: Names) -> ConsumerGroup:
        return self._of(names).admin().describe_group(names.input)

    def consumer(self, names: Names, process: str, **group: Any) -> SimulatedGroupConsumer:
        return self._of(names, process, self.settings(group=group)).consumer(process)

    def no_member(self, names: Names) -> GroupMetadata:
        return GroupMetadata(names.group, "", -1)

    def control(self, names: Names, partition: int, wake: Callable[[], None]) -> SimulatedControl:
        return self._of(names).control(partition, wake)

    def delayed(self, names: Names, topic: str, partition: int) -> SimulatedDelayed:
        return self._of(names).delayed(topic, partition)

    def read_inputs(
        self, names: Names, partition: int, positions: Mapping[str, int], ids: Mapping[str, str], to: InputReceiver
    ) -> SimulatedInputReading:
        return self._of(names).inputs().read(partition, positions, ids, to)

    def copy_next_end(self) -> Callable[[], None]:
        assert isinstance(self.kafka.scheduler, PassTime)
        for name in ("commit", "abort"):
            self.kafka.scheduler.plan(name, CallFault(copy=True))
        return self.kafka.transactions.release

    def crash(self, process: str) -> None:
        for each in self.processes.get(process, []):
            each.crash()

    def silence(self, process: str) -> None:
        for each in self.processes.get(process, []):
            each.cut()
            self.later(2 * SESSION, each.heal)

    def close(self) -> None:
        """Nothing is open."""
