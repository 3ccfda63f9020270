"""Reads a retry topic ahead. Records that are not due wait here, or in Kafka if there are many."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Message

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.kafka.feeds.topic_feed import Feed, FeedLane
from statehold.messages.retry_record import Retried
from statehold.telemetry.log_events import Log

#: most records of one partition that wait here, and the number at which it reads on
_HIGH: Final = 2000
_LOW: Final = 500


class RetryFeed(Feed):
    def __init__(self, settings: Settings, names: Names, log: Log, topic: str) -> None:
        super().__init__(settings, names.group, topic, log)
        self._inputs = names.inputs

    def lane(self, partition: int) -> RetryLane:
        return RetryLane(self, partition, self._inputs)


class RetryLane(FeedLane):
    """`ports.Delayed` of one partition for one assignment."""

    def __init__(self, feed: Feed, partition: int, inputs: Sequence[str]) -> None:
        super().__init__(feed, partition)
        self._inputs = inputs
        self._held: deque[Retried] = deque()
        #: the offset that was missing in the log, because a new topic counts from 0 again
        self._lost = -1

    @property
    def held(self) -> int:
        return len(self._held)

    def due(self, position: int, now: int) -> tuple[list[Retried], int]:
        self._follow(position)
        found = []
        with self._lock:
            if position != self._lost:
                self._lost = -1
            while self._held and self._held[0].at < position != self._lost:
                self._held.popleft()
            for each in self._held:
                if each.due > now:
                    break
                found.append(each)
            if found and found[-1].at + 1 == self._lost:  # because the next offset must differ from the lost one
                found.pop()
            refill = self.full and len(self._held) < _LOW
            self.full = self.full and not refill
        if refill:
            self._feed.change(self)
        return found, found[-1].at + 1 if found else position

    def gone(self) -> None:
        """Log that records were deleted before their retry, or the topic; the rest continues."""
        self._feed.log.error("retries_gone", topic=self._feed.topic, partition=self.partition, offset=self.next)
        with self._lock:
            self._lost = self.next

    def put(self, message: Message) -> None:
        """Take a record. One without room here is read again later."""
        offset = message.offset() or 0
        if 0 <= self.next > offset or self.full:
            return
        retried = Retried.by(message, self._inputs)
        if retried is None:
            self._feed.log.error("retry_rejected", topic=self._feed.topic, partition=self.partition, offset=offset)
        with self._lock:
            self.full = len(self._held) >= _HIGH
            if not self.full:
                self.next = offset + 1
                self._held.extend([retried] if retried is not None else ())
        if self.full:
            self._feed.change(self)
