"""Reads and sets a group's committed offsets with consumers that never join.

The AdminClient's request ends the process if the group's coordinator has moved (SIGSEGV in librdkafka's
rd_kafka_handle_OffsetFetch; measured with 2.16.0 and a restarted broker).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from statehold.common.deadline import Deadline
from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.health.connectivity import NoContact
from statehold.kafka.admin.futures import ATTEMPT
from statehold.kafka.common.call_timeout import STUCK_AFTER
from statehold.kafka.common.client_log import quiet
from statehold.kafka.common.error_actions import COORDINATOR_MOVES, describe, translate
from statehold.ports import Noted

#: pause between two tries to set offsets, because a coordinator loads its log for some seconds
_PAUSE: Final = 0.2
#: seconds for the coordinator to load or move when offsets are set
_COORDINATOR_WAIT: Final = 30.0
#: seconds for a request whose answer is optional
PEEK: Final = 2.0
#: seconds between two replacements of a client that gets no answers
RENEW_EVERY: Final = 30.0
#: prefix of the metadata of a group offset, before the state generation
LINEAGE: Final = "lineage="


class GroupOffsets:
    """Any thread may use it."""

    def __init__(self, settings: Settings, group: str, contact: NoContact) -> None:
        self._settings, self._group, self._contact = settings, group, contact
        self._making = threading.Lock()
        #: that never join, by isolation level
        self._consumers: dict[client.Isolation, Consumer] = {}
        self._replace_after = Deadline(RENEW_EVERY)

    def committed(self, topic: str, partition: int) -> int | None:
        """Return the committed offset of a partition, after open transactions have ended; None without one.

        :raises KafkaTrouble: the coordinator does not answer.
        """
        found = self._stable(topic, partition)
        return found.offset if found.offset >= 0 else None

    def noted(self, topic: str, partition: int) -> Noted | None:
        """Return the metadata of that offset; None if statehold wrote none.

        :raises KafkaTrouble: the coordinator does not answer.
        """
        found = self._stable(topic, partition)
        text = found.metadata or ""
        return Noted.of(text.removeprefix(LINEAGE)) if found.offset >= 0 and text.startswith(LINEAGE) else None

    def _stable(self, topic: str, partition: int) -> TopicPartition:
        try:
            # read_committed waits for the offsets of open transactions ("stable offsets").
            with self._contact.call("committed", ATTEMPT + STUCK_AFTER, partition=partition):
                found = self._consumer("read_committed").committed([TopicPartition(topic, partition)], ATTEMPT)[0]
        except KafkaException as error:
            self._replace()
            raise translate(error) from error
        if found.error is not None:
            raise KafkaTrouble(describe(found.error))
        return found

    def lineages(self, topic: str, partitions: int) -> dict[int, Noted]:
        """Return the metadata of every partition's offset, by a consumer that does not wait for open transactions."""
        noted = {place.partition: place.metadata or "" for place in self._peek(topic, range(partitions))}
        return {p: Noted.of(text.removeprefix(LINEAGE)) for p, text in noted.items() if text.startswith(LINEAGE)}

    def positions(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """Return the committed offsets that exist, without waiting for open transactions.

        :raises KafkaTrouble: the coordinator does not answer.
        """
        return {place.partition: place.offset for place in self._peek(topic, partitions)}

    def _peek(self, topic: str, partitions: Sequence[int]) -> list[TopicPartition]:
        try:
            with self._contact.call("committed", PEEK + STUCK_AFTER):
                found = self._consumer("read_uncommitted").committed(
                    [TopicPartition(topic, p) for p in partitions], PEEK
                )
        except KafkaException as error:
            self._replace()
            raise translate(error) from error
        return [place for place in found if place.error is None and place.offset >= 0]

    def set_committed(self, topic: str, positions: Mapping[int, int]) -> str:
        """Commit offsets for a group without members. Return why the brokers rejected them, or ''.

        A coordinator that loads or moves is asked again.
        """
        places = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
        deadline = Deadline(_COORDINATOR_WAIT)
        while True:
            try:
                done = self._consumer("read_committed").commit(offsets=places, asynchronous=False) or ()
                refused = [place.error for place in done if place.error is not None]
            except KafkaException as error:
                refused = [error.args[0]]
            if not any(error.code() in COORDINATOR_MOVES for error in refused) or deadline.passed:
                return "; ".join(dict.fromkeys(map(describe, refused)))
            time.sleep(_PAUSE)

    def _replace(self) -> None:
        """Let new clients ask next time, because these may have forgotten their brokers (`lost_brokers`).

        Once in `RENEW_EVERY` at most, because over a slow link a new client needs seconds before it can ask.
        """
        with self._making:
            if self._replace_after.passed:
                self._replace_after = Deadline(RENEW_EVERY)
                self._consumers.clear()

    def _consumer(self, isolation: client.Isolation) -> Consumer:
        with self._making:
            if isolation not in self._consumers:
                config = client.offsets(self._settings, self._group, isolation=isolation)
                self._consumers[isolation] = Consumer(quiet(config, "offsets"))
            return self._consumers[isolation]
