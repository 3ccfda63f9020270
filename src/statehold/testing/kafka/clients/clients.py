"""Makes the clients of one process."""

from __future__ import annotations

from collections.abc import Callable

from statehold.bound.sink import Connect
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.testing.kafka.clients.admin import SimulatedAdmin
from statehold.testing.kafka.clients.consumer import SimulatedGroupConsumer
from statehold.testing.kafka.clients.database import connector
from statehold.testing.kafka.clients.feeds import SimulatedControl, SimulatedDelayed, SimulatedInputs
from statehold.testing.kafka.clients.process import SimulatedProcess
from statehold.testing.kafka.clients.producer import SimulatedFullSink, SimulatedTransactions
from statehold.testing.kafka.clients.reader import SimulatedFollowingReader, SimulatedReader
from statehold.testing.kafka.cluster import SimulatedKafka
from statehold.testing.memory.database import MemoryDatabase


class Clients(SimulatedProcess):
    """One process of a service: crash, freeze or cut it, and make its clients as the Kafka adapter does."""

    def __init__(self, kafka: SimulatedKafka, name: str, names: Names, settings: Settings) -> None:
        super().__init__(kafka, name)
        self.names, self.settings = names, settings
        self._attempts = 0

    def consumer(self, client_id: str = "") -> SimulatedGroupConsumer:
        return SimulatedGroupConsumer(self, self.names, self.settings, client_id)

    def transactions(self, partition: int) -> SimulatedTransactions:
        self._attempts += 1
        attempt = f"{self.name}.{partition}.{self._attempts}"
        return SimulatedTransactions(self, self.names, partition, self.settings, attempt)

    def full_sink(self, partition: int, topic: str = "") -> SimulatedFullSink:
        return SimulatedFullSink(self, topic or self.names.snapshot, partition, self.settings.output.linger)

    def reader(self, cancelled: Callable[[], bool] = lambda: False) -> SimulatedReader:
        return SimulatedReader(self, self.settings, cancelled)

    def following_reader(self, cancelled: Callable[[], bool] = lambda: False) -> SimulatedFollowingReader:
        return SimulatedFollowingReader(self, self.settings, cancelled)

    def admin(self) -> SimulatedAdmin:
        """Return `ports.Offsets` of the service's group."""
        return SimulatedAdmin(self, self.names.group)

    def control(self, partition: int, wake: Callable[[], None] = lambda: None) -> SimulatedControl:
        return SimulatedControl(self, self.names, partition, self.settings.kafka.message_max_bytes // 4, wake)

    def delayed(self, topic: str, partition: int) -> SimulatedDelayed:
        return SimulatedDelayed(self, topic, self.names.inputs, partition)

    def database(self, database: MemoryDatabase) -> Connect:
        """Return the connector of the handler's sinks for one assignment."""
        return connector(self, database, self.settings.sink.timeout)

    def inputs(self) -> SimulatedInputs:
        return SimulatedInputs(self, self.names, self.settings)
