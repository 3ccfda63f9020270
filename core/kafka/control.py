"""Reads the control topic of a service: commands for inputs whose other readers bear none."""

from __future__ import annotations

import json
import queue
import threading
from collections import deque
from functools import partial
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from holdfast.command import BadCommand
from holdfast.config import client
from holdfast.config.settings import Settings
from holdfast.errors import KafkaTrouble
from holdfast.kafka.admin import Admin
from holdfast.kafka.forgotten import Memory, known
from holdfast.kafka.probe import told_anew
from holdfast.kafka.taint import quiet_logger
from holdfast.names import Names
from holdfast.observe import Log
from holdfast.ports import Asked

_POLL = 0.1
_BATCH = 100
#: seconds before it is read anew after an error
_AGAIN = 1.0
_LOOK_MS = 5000


def control_feed(settings: Settings, names: Names, admin: Admin, log: Log) -> ControlFeed | None:
    """Where the service has a control topic; one that may not be looked at is none. Blocks."""
    try:
        there = admin.describe([names.control])[names.control] is not None
    except KafkaTrouble as error:
        log.warning("kafka_retry", doing=f"look for {names.control}", cause=str(error))
        return None
    return ControlFeed(settings, names, log) if there else None


class ControlFeed:
    """One consumer and one thread for all partitions of this process; both begin with the first partition."""

    def __init__(self, settings: Settings, names: Names, log: Log, topic: str = "") -> None:
        self._settings, self._names, self._log = settings, names, log
        self.topic = topic or names.control
        self._lock = threading.Lock()
        self._lanes: dict[int, ControlLane] = {}
        self._changed: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._renewing = threading.Event()
        self._thread: threading.Thread | None = None
        #: bytes of a command: a mark repeats it
        self.largest = largest_command(settings)

    def lane(self, partition: int) -> ControlLane:
        return ControlLane(self, partition)

    def close(self) -> None:
        self._ending.set()

    def renew(self) -> None:
        """Any thread: passwords and certificates have changed, and a new consumer reads from now on."""
        self._renewing.set()

    def change(self, lane: ControlLane, *, leave: bool = False) -> None:
        """Any thread: begin to read for this lane where it says, or no longer."""
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
            config: dict[str, Any] = dict(client.reader(self._settings, self._names.group))
            memory = Memory(partial(told_anew, self._settings))
            config |= {
                "logger": quiet_logger("control"),
                "statistics.interval.ms": _LOOK_MS,
                "stats_cb": partial(_remember, memory),
            }
            consumer = Consumer(config)
            try:
                self._read(consumer, memory)
            except KafkaException as error:  # a service does not fail because nobody can talk to it
                self._log.warning("kafka_retry", doing=f"read {self.topic}", cause=str(error))
            finally:
                consumer.close()
            self._changed.put(-1)  # the next consumer is given all lanes
            self._ending.wait(_AGAIN)

    def _read(self, consumer: Consumer, memory: Memory) -> None:
        """Until the end, or until the consumer has forgotten its brokers, or its login is an old one."""
        while not self._ending.is_set() and not memory.lost and not self._renewing.is_set():
            self._assign(consumer)
            for message in consumer.consume(_BATCH, _POLL):
                self._hand_over(message)

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
            lane.put(message, self._log)
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            lane.gone(self._log)
            lane.next = OFFSET_BEGINNING
            self._changed.put(lane.partition)


def _remember(memory: Memory, text: str) -> None:
    told = json.loads(text)
    brokers = told.get("brokers", {}).values()
    memory.saw(known(told), works=any(each.get("state") == "UP" for each in brokers))


class ControlLane:
    """`ports.Control` of one partition for one assignment."""

    def __init__(self, feed: ControlFeed, partition: int) -> None:
        self._feed, self.partition = feed, partition
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, Asked | None]] = deque()
        self._following = False
        #: next offset of the control topic to take
        self.next = 0
        #: it holds so much that nothing is read for it now
        self.full = False

    def waiting(self, position: int) -> tuple[list[Asked], int]:
        if not self._following:
            self._following, self.next = True, position
            self._feed.change(self)
        with self._lock:
            while self._waiting and self._waiting[0][0] < position:
                self._waiting.popleft()
            end = self._waiting[-1][0] + 1 if self._waiting else position
            return [asked for _, asked in self._waiting if asked is not None], end

    def close(self) -> None:
        if self._following:
            self._feed.change(self, leave=True)

    def gone(self, log: Log) -> None:
        """What was not read in time is deleted: it was a request, not a record, and nothing has come of it."""
        log.warning("commands_gone", partition=self.partition, offset=self.next)

    def put(self, message: Message, log: Log) -> None:
        """The feed's thread. A new assignment makes the consumer begin anew: what has come before is passed over."""
        offset = message.offset() or 0
        if 0 <= self.next > offset:
            return
        asked, refused = _asked(message, self._feed.largest)
        if refused:
            log.warning("command_refused", partition=self.partition, offset=offset, cause=refused)
        with self._lock:
            self._waiting.append((offset, asked))
            self.next = offset + 1


def largest_command(settings: Settings) -> int:
    """How many bytes a user's command of the control topic may have, all in all: its mark repeats it."""
    return settings.kafka.message_max_bytes // 4


def _asked(message: Message, largest: int) -> tuple[Asked | None, str]:
    """The command, or why there is none."""
    try:
        asked = Asked.by(message)
    except BadCommand as error:
        return None, str(error)
    if asked is None:
        return None, "it is no command: the header holdfast-command is missing"
    if asked.pinned is not None and asked.pinned.size > largest:
        return None, f"{asked.command.name!r} takes {asked.pinned.size} bytes, more than {largest}"
    return asked, ""
