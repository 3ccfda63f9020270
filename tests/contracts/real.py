"""Real brokers behind a proxy as a world of contracts, with the clients that a service uses."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from tests.contracts.world import PATIENCE, SESSION, World
from tests.support.proxy import ApiKey, Fault, Proxy, Trap

from statehold.common.names import Names
from statehold.config import client
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.kafka.clients.consumer import KafkaGroupConsumer
from statehold.kafka.clients.full_producer import KafkaFullSink
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.kafka.clients.reader import KafkaReader
from statehold.kafka.feeds.control_topic import ControlFeed, ControlLane
from statehold.kafka.feeds.input_feed import InputFeeds, Lanes
from statehold.kafka.feeds.retry_topic import RetryFeed, RetryLane
from statehold.ports import ConsumerGroup, InputReceiver
from statehold.telemetry.log_events import Log

#: requests of a group's members
_HEARTBEAT = 12


class Real(World):
    """Clients of a test are closed with it; the brokers and the proxy are those of the whole run."""

    def __init__(self, servers: str, proxy: Proxy, version: str) -> None:
        self.version, self.servers, self._proxy = version, servers, proxy
        self._admin = Admin(self.settings(), "tools")
        self._log = Log(service="contracts")
        self._closing: list[Callable[[], object]] = []
        self._admins: dict[str, Admin] = {}
        self._writer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
        self._silenced = threading.Event()

    def now(self) -> float:
        return time.monotonic()

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, call)
        timer.start()
        self._closing.append(timer.join)

    def create(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> bool:
        made = TopicAdmin(self._admin).create(topic, partitions, 1, settings or {})
        self.until(lambda: self.topic_id(topic) is not None, f"topic {topic}")
        return made

    def delete(self, topic: str) -> None:
        self._admin.client.delete_topics([topic])[topic].result(PATIENCE)
        self.until(lambda: self.topic_id(topic) is None, f"the end of {topic}")

    def grow(self, topic: str, partitions: int) -> None:
        TopicAdmin(self._admin).grow(topic, partitions)
        self.until(lambda: self.topic_partitions(topic) == partitions, "more partitions")

    def topic_id(self, topic: str) -> str | None:
        found = self._admin.describe([topic])[topic]
        return found.id if found is not None else None

    def topic_partitions(self, topic: str) -> int:
        found = self._admin.describe([topic])[topic]
        assert found is not None
        return found.partitions

    def topic_settings(self, topic: str) -> Mapping[str, str]:
        return TopicAdmin(self._admin).settings(topic)

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
        offsets: list[int] = []
        for value in values:
            self._writer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=lambda error, message: offsets.append(-1 if error else message.offset() or 0),
                timestamp=timestamp,
                headers=list(headers),
            )
        assert self._writer.flush(PATIENCE) == 0
        return offsets

    def transactions(self, names: Names, partition: int = 0, **commit: float) -> KafkaTransactions:
        made = KafkaTransactions(self.settings(commit=commit), names, partition, self._log, time.monotonic)
        self._closing.append(made.drop)
        return made

    def reader(self, names: Names | None = None, cancelled: Callable[[], bool] = lambda: False) -> KafkaReader:
        made = KafkaReader(self.settings(), names.group if names else "tools", self._admin, cancelled, time.monotonic)
        self._closing.append(made.close)
        return made

    def following_reader(self, names: Names | None = None) -> CommittedReader:
        return CommittedReader(self.settings(), names.group if names else "tools", self._admin)

    def end(self, topic: str, partition: int = 0) -> int:
        return self._admin.bounds(topic, partition, PATIENCE, lambda: False)[1]

    def start(self, topic: str, partition: int = 0) -> int:
        return self._admin.bounds(topic, partition, PATIENCE, lambda: False)[0]

    def full_sink(self, topic: str, partition: int = 0) -> KafkaFullSink:
        return KafkaFullSink(self.settings(commit={"timeout": 2.0}), topic, partition)

    def offsets(self, names: Names) -> Admin:
        # Kept, because a future whose client is gone never ends (pitfall P27).
        if names.group not in self._admins:
            self._admins[names.group] = Admin(self.settings(), names.group)
        return self._admins[names.group]

    def describe_group(self, names: Names) -> ConsumerGroup:
        return self.offsets(names).describe_group(names.input)

    def consumer(self, names: Names, process: str, **group: Any) -> KafkaGroupConsumer:
        settings = self.settings(group=group)
        look = partial(self.offsets(names).describe_group, names.input)
        made = KafkaGroupConsumer(settings, names, self._log, client_id=process, read_group=look)
        self._closing.append(lambda: made.close(3.0))
        return made

    def no_member(self, names: Names) -> Any:
        made = Consumer(client.offsets(self.settings(), names.group))
        self._closing.append(made.close)
        return made.consumer_group_metadata()

    def control(self, names: Names, partition: int, wake: Callable[[], None]) -> ControlLane:
        feed = ControlFeed(self.settings(), names, self.offsets(names), self._log)
        self._closing.append(feed.close)
        return feed.lane(partition, wake)

    def delayed(self, names: Names, topic: str, partition: int) -> RetryLane:
        feed = RetryFeed(self.settings(), names, self._log, topic)
        self._closing.append(feed.close)
        return feed.lane(partition)

    def read_inputs(
        self, names: Names, partition: int, positions: Mapping[str, int], ids: Mapping[str, str], to: InputReceiver
    ) -> Lanes:
        feeds = InputFeeds(self.settings(), names, self._log)
        self._closing.append(feeds.close)
        return feeds.read(partition, positions, ids, to)

    def copy_next_end(self) -> Callable[[], None]:
        trap = self._proxy.trap(ApiKey.END_TXN, Fault.HOLD_AND_RESET)

        def deliver() -> None:
            trap.end_txn_error()

        return deliver

    def crash(self, process: str) -> None:
        """End without a word: no heartbeat and no request to leave arrives any more."""
        self._silence(process, lambda: True)

    def silence(self, process: str) -> None:
        until = time.monotonic() + 2 * SESSION
        self._silence(process, lambda: time.monotonic() < until)

    def _silence(self, process: str, lasts: Callable[[], bool]) -> None:
        """Hold each connection on which the process sends a heartbeat, or leaves."""
        name = struct.pack(">h", len(process)) + process.encode()
        kinds = (_HEARTBEAT, ApiKey.CONSUMER_GROUP_HEARTBEAT, 13)

        def again() -> None:
            caught: dict[int, Trap] = {}
            while lasts() and not self._silenced.is_set():
                for kind in kinds:
                    if kind not in caught or caught[kind].caught:
                        caught[kind] = self._proxy.trap(
                            kind, Fault.HOLD, lambda request: request.frame.startswith(name, 12)
                        )
                time.sleep(0.01)
            self._proxy.free()

        thread = threading.Thread(target=again, daemon=True)
        thread.start()
        self._closing.append(thread.join)

    def close(self) -> None:
        self._silenced.set()
        self._proxy.free()
        for call in reversed(self._closing):
            with suppress(KafkaException, RuntimeError):  # closed by the test
                call()
