"""A reader for tools and replicas: it ends where committed records end, and never waits for open transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import IsolationLevel

from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, Misconfigured
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.futures import EARLIEST, LATEST, ask_offsets, require_offset, result
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.clients.reader import KafkaReader
from statehold.kafka.common.error_actions import about
from statehold.kafka.common.retry import call_patiently

#: seconds for the offsets of a partition while its leader moves
_DEADLINE: Final = 20.0


class CommittedReader(KafkaReader):
    """`ports.FollowingReader`. Its bounds end at the last stable offset. It joins no group and commits nothing."""

    def __init__(
        self,
        settings: Settings,
        group: str,
        admin: Admin,
        cancelled: Callable[[], bool] = lambda: False,
        *,
        small: bool = False,
    ) -> None:
        super().__init__(settings, group, admin, cancelled, time.monotonic, small=small)
        self._topics = TopicAdmin(admin)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return log start and last stable offset. Repeats, because a leader may be moving.

        :raises KafkaTrouble: no answer within 20 s.
        """
        return call_patiently(lambda: self._bounds(topic, partition), _DEADLINE, cancelled=self._cancelled)

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._offset(topic, partition, EARLIEST), self._offset(topic, partition, LATEST)

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        futures = self._ask([(topic, partition) for partition in partitions], LATEST)
        try:
            return {p: require_offset(result(future, self._cancelled).offset) for (_, p), future in futures.items()}
        except KafkaTrouble:
            self._admin.look_again(topic)
            raise

    def end(self, topic: str, partition: int) -> int:
        """Return the end of the log, open transactions included."""
        return self._admin.bounds(topic, partition, _DEADLINE, lambda: False)[1]

    def offset_at(self, topic: str, partition: int, moment: int) -> int:
        """Return the first offset at that time (milliseconds since 1970) or later, else the end."""
        offset = self._topics.offset(topic, partition, moment)
        return offset if offset >= 0 else self.end(topic, partition)

    def _offset(self, topic: str, partition: int, spec: Any) -> int:
        asked = self._ask([(topic, partition)], spec)
        try:
            return require_offset(result(asked[topic, partition]).offset)
        except Misconfigured as error:
            raise about(topic, error) from error.__cause__

    def _ask(self, places: Sequence[tuple[str, int]], spec: Any) -> dict[tuple[str, int], Future[Any]]:
        return ask_offsets(self._admin.client, places, spec, IsolationLevel.READ_COMMITTED, _DEADLINE / 2)
