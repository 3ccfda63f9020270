"""Reads the partitions of a topic of replies that an asker waits for, from where they end when it begins to ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import Consumer, Message

from statehold.config.settings import Settings
from statehold.kafka.feeds.topic_feed import Feed, FeedLane
from statehold.messages.request import Reply, read_reply
from statehold.telemetry.log_events import Log

#: seconds of one poll, and most replies that follow the first one of it
_POLL: Final = 0.05
_MORE: Final = 500
#: milliseconds for which a broker holds a fetch without a new reply; one with a reply returns at once
_HOLD_MS: Final = 100

#: gets each reply of a partition, on the feed's thread
Take = Callable[[Reply], None]


class ReplyFeed(Feed):
    """Its consumer joins no group. A partition with an open transaction holds back only its own replies."""

    def __init__(self, settings: Settings, group: str, topic: str, log: Log, take: Take) -> None:
        super().__init__(settings, group, topic, log)
        self._take = take

    def lane(self, partition: int, position: int) -> ReplyLane:
        """Read this partition from an offset on, until the lane is closed."""
        lane = ReplyLane(self, partition, self._take)
        lane.begin(position)
        return lane

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "fetch.wait.max.ms": _HOLD_MS}

    def _turns(self, consumer: Consumer) -> Iterator[None]:
        """As in `Feed`, but hand over the first record at once: `consume` would wait for its time, or its number."""
        while True:
            self._assign(consumer)
            first = consumer.poll(_POLL)
            if first is not None:
                self._hand_over(first)
                for message in consumer.consume(_MORE, 0):
                    self._hand_over(message)
            yield


class ReplyLane(FeedLane):
    """One partition of the topic of replies."""

    def __init__(self, feed: ReplyFeed, partition: int, take: Take) -> None:
        super().__init__(feed, partition)
        self._take = take

    def begin(self, position: int) -> None:
        self._follow(position)

    def put(self, message: Message) -> None:
        offset = message.offset() or 0
        if 0 <= self.next > offset:
            return
        self.next = offset + 1
        if (reply := read_reply(message)) is not None:
            self._take(reply)

    def gone(self) -> None:
        """Read on from the beginning: the topic was created again, or its retention is shorter than an outage."""
        topic, partition = self._feed.topic, self.partition
        cause = f"{topic}[{partition}]@{self.next}: deleted, the topic or its oldest records; read from its beginning"
        self._feed.log.warning("kafka_retry", doing="read replies", cause=cause)
