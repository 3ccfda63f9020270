"""A group's committed offsets, asked of consumers that never join, and set by one.

The AdminClient's own way ends the process (SIGSEGV in librdkafka's rd_kafka_handle_OffsetFetch) when the group's
coordinator has moved; measured with 2.16.0, broker restarted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.health.connectivity import NoContact
from statehold.kafka.admin.futures import ATTEMPT
from statehold.kafka.common.call_timeout import STUCK_AFTER
from statehold.kafka.common.error_actions import COORDINATOR_MOVES, describe, translate
from statehold.kafka.common.transaction_taint import quiet_logger
from statehold.ports import Noted

_PAUSE = 0.2
#: seconds that a question may take that need not be answered
PEEK = 2.0
#: seconds between two replacements of a client that gets no answers
RENEW_EVERY = 30.0
#: what stands beside a group offset, before the lineage
LINEAGE = "lineage="
_COORDINATOR_WAIT = 30.0


class GroupOffsets:
    """May be used by any thread."""

    def __init__(self, settings: Settings, group: str, contact: NoContact) -> None:
        self._settings, self._group, self._contact = settings, group, contact
        self._making = threading.Lock()
        self._consumer: Consumer | None = None
        self._peeking: Consumer | None = None
        self._replace_at = time.monotonic() + RENEW_EVERY

    def committed(self, topic: str, partition: int) -> int | None:
        """Asked of a consumer that never joins: the AdminClient's own way ends the process (SIGSEGV in librdkafka's
        rd_kafka_handle_OffsetFetch) when the group's coordinator has moved; measured with 2.16.0, broker restarted.
        """
        found = self._stable(topic, partition)
        return found.offset if found.offset >= 0 else None

    def noted(self, topic: str, partition: int) -> Noted | None:
        """What stands beside that offset; None where there is none, or none of ours. Blocks; raises KafkaTrouble."""
        found = self._stable(topic, partition)
        text = found.metadata or ""
        return Noted.of(text.removeprefix(LINEAGE)) if found.offset >= 0 and text.startswith(LINEAGE) else None

    def _stable(self, topic: str, partition: int) -> TopicPartition:
        try:
            # read_committed makes it wait for offsets of open transactions ("stable offsets").
            with self._contact.call("committed", ATTEMPT + STUCK_AFTER, partition=partition):
                found = self._asker().committed([TopicPartition(topic, partition)], ATTEMPT)[0]
        except KafkaException as error:
            self._replace()
            raise translate(error) from error
        if found.error is not None:
            raise KafkaTrouble(describe(found.error))
        return found

    def lineages(self, topic: str, partitions: int) -> dict[int, Noted]:
        """By a consumer of its own: one that asks for stable offsets would wait for every partition's transaction."""
        try:
            with self._contact.call("committed", PEEK + STUCK_AFTER):
                found = self._peeker().committed([TopicPartition(topic, p) for p in range(partitions)], PEEK)
        except KafkaException as error:
            self._replace()
            raise translate(error) from error
        noted = {place.partition: place.metadata or "" for place in found if place.error is None and place.offset >= 0}
        return {p: Noted.of(text.removeprefix(LINEAGE)) for p, text in noted.items() if text.startswith(LINEAGE)}

    def positions(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """What the group has committed, where it has; waits for no open transaction. Blocks; raises KafkaTrouble."""
        try:
            with self._contact.call("committed", PEEK + STUCK_AFTER):
                found = self._peeker().committed([TopicPartition(topic, p) for p in partitions], PEEK)
        except KafkaException as error:
            self._replace()
            raise translate(error) from error
        return {place.partition: place.offset for place in found if place.error is None and place.offset >= 0}

    def set_committed(self, topic: str, positions: Mapping[int, int]) -> str:
        """Commit offsets for a group without members; why it was refused, or ''.

        By the same consumer, for the same reason as `committed`. A coordinator that is still loading is asked again.
        """
        places = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
        until = time.monotonic() + _COORDINATOR_WAIT
        while True:
            try:
                done = self._asker().commit(offsets=places, asynchronous=False) or ()
                refused = [place.error for place in done if place.error is not None]
            except KafkaException as error:
                refused = [error.args[0]]
            if not any(error.code() in COORDINATOR_MOVES for error in refused) or time.monotonic() > until:
                return "; ".join(dict.fromkeys(map(describe, refused)))
            time.sleep(_PAUSE)

    def _replace(self) -> None:
        """No answer: perhaps these clients have forgotten their brokers (`core.kafka.forgotten`). New ones ask next
        time, every half minute at most: over a slow link a client needs seconds before it can ask anything.
        """
        with self._making:
            if time.monotonic() >= self._replace_at:
                self._replace_at = time.monotonic() + RENEW_EVERY
                self._consumer = self._peeking = None

    def _asker(self) -> Consumer:
        with self._making:
            if self._consumer is None:
                self._consumer = self._consumer_of("read_committed")
            return self._consumer

    def _peeker(self) -> Consumer:
        with self._making:
            if self._peeking is None:
                self._peeking = self._consumer_of("read_uncommitted")
            return self._peeking

    def _consumer_of(self, isolation: client.Isolation) -> Consumer:
        config: dict[str, Any] = dict(client.offsets(self._settings, self._group, isolation=isolation))
        config["logger"] = quiet_logger("offsets")
        return Consumer(config)
