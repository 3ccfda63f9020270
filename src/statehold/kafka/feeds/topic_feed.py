"""Follows a topic in addition to the input; records wait in a lane for the owner of their partition."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from statehold.config import client
from statehold.config.settings import Settings
from statehold.kafka.common.broker_probe import probe_brokers
from statehold.kafka.common.client_log import quiet_logger
from statehold.kafka.common.lost_brokers import BrokerMemory, known_brokers, section
from statehold.telemetry.log_events import Log

#: seconds and records of one poll: changed lanes are assigned between polls
_POLL: Final = 0.1
_BATCH: Final = 100
#: seconds between two consumers, so that a failing one does not fill the log
_PAUSE: Final = 1.0
#: milliseconds between two statistics, which show whether the consumer has forgotten its brokers
_STATISTICS_MS: Final = 5000


class Feed:
    """One consumer and one thread for all partitions of this process; both start with the first partition."""

    def __init__(self, settings: Settings, group: str, topic: str, log: Log) -> None:
        self._settings, self._group, self.topic, self.log = settings, group, topic, log
        self._lock = threading.Lock()
        self._lanes: dict[int, FeedLane] = {}
        self._changed: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._renewing = threading.Event()
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        self._ending.set()

    def renew(self) -> None:
        """Read with a new consumer, because passwords or certificates have changed. Any thread may call it."""
        self._renewing.set()

    def change(self, lane: FeedLane, *, leave: bool = False) -> None:
        """Start reading for this lane at its next offset, or stop with `leave`. Any thread may call it."""
        with self._lock:
            if not leave:
                self._lanes[lane.partition] = lane
            elif self._lanes.get(lane.partition) is lane:
                del self._lanes[lane.partition]
            self._changed.put(lane.partition)
            if self._thread is None and not leave:
                self._thread = threading.Thread(target=self._run, name=f"read-{self.topic}", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._renewing.clear()
            memory = BrokerMemory(partial(probe_brokers, self._settings))
            consumer = Consumer({**self._config(), "stats_cb": partial(_remember, memory)})
            try:
                self._read(consumer, memory)
            except KafkaException as error:  # because a service must not fail for a missing control topic
                self.log.warning("kafka_retry", doing=f"read {self.topic}", cause=str(error))
            except Exception as error:  # noqa: BLE001  because a thread must not die unseen (rule A6)
                self._died(error)
            finally:
                consumer.close()
            self._changed.put(-1)  # the next consumer reads for all lanes
            self._ending.wait(_PAUSE)

    def _died(self, error: Exception) -> None:
        """Log a bug in this thread, which then reads on with a new consumer."""
        self.log.error("thread_died", thread=f"read-{self.topic}", cause=repr(error), exc_info=True)

    def _config(self) -> dict[str, Any]:
        """Return the configuration of the next consumer."""
        config: dict[str, Any] = dict(client.reader(self._settings, self._group))
        return {**config, "logger": quiet_logger("feed"), "statistics.interval.ms": _STATISTICS_MS}

    def _read(self, consumer: Consumer, memory: BrokerMemory) -> None:
        """Read until the end, or until the consumer has forgotten its brokers or has an old login."""
        turns = self._turns(consumer)
        while not self._ending.is_set() and not memory.lost and not self._renewing.is_set():
            next(turns)

    def _turns(self, consumer: Consumer) -> Iterator[None]:
        """Assign changed lanes, poll once and hand the records over, again and again."""
        while True:
            self._assign(consumer)
            for message in consumer.consume(_BATCH, _POLL):
                self._hand_over(message)
            yield

    def _assign(self, consumer: Consumer) -> None:
        if self._changed.empty():
            return
        while not self._changed.empty():
            self._changed.get()
        with self._lock:
            lanes = list(self._lanes.values())
        consumer.assign([TopicPartition(self.topic, lane.partition, lane.next) for lane in lanes if not lane.full])

    def _hand_over(self, message: Message) -> None:
        error = message.error()
        with self._lock:
            lane = self._lanes.get(message.partition() or 0)
        if lane is None:
            return
        if error is None:
            lane.put(message)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            lane.gone()
            lane.next = OFFSET_BEGINNING
            self._changed.put(lane.partition)


class FeedLane(ABC):
    """One partition for one assignment: the feed's thread puts records, the owner's thread takes them."""

    def __init__(self, feed: Feed, partition: int) -> None:
        self._feed, self.partition = feed, partition
        self._lock = threading.Lock()
        self._following = False
        #: next offset to read
        self.next = 0
        #: full lanes are not read
        self.full = False

    def close(self) -> None:
        if self._following:
            self._feed.change(self, leave=True)

    @abstractmethod
    def put(self, message: Message) -> None:
        """Take a record, on the feed's thread. Skip one that came before, because a new assignment reads it again."""

    @abstractmethod
    def gone(self) -> None:
        """Note that the next record is deleted, on the feed's thread."""

    def _follow(self, position: int) -> None:
        """Start reading with the first call, on the owner's thread."""
        if not self._following:
            self._following, self.next = True, position
            self._feed.change(self)


def _remember(memory: BrokerMemory, text: str) -> None:
    brokers = section(text, "brokers")
    memory.saw(known_brokers(brokers), works=any(each.get("state") == "UP" for each in brokers.values()))
