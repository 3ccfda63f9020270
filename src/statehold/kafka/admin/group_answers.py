"""Keeps answers of the group's coordinator for 5 s: the members with their partitions, and the committed offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from statehold.kafka.admin.futures import NO_TIMEOUT
from statehold.kafka.admin.groups import ask_groups, consumer_group
from statehold.ports import GroupMember

#: seconds that an answer is kept: members change by rebalances, which take longer
_KEPT: Final = 5.0
#: seconds without an answer until a new client asks, because this one may wait for a dead coordinator
_TIMEOUT: Final = 3.0
_NEVER: Final = float("-inf")

T = TypeVar("T")


class CachedAnswer(Generic[T]):
    """Any thread may use it. `new_client` makes the client that `ask` asks; `read` turns the answer into a value."""

    def __init__(
        self,
        new_client: Callable[[], AdminClient],
        ask: Callable[[AdminClient], Future[Any]],
        read: Callable[[Any], T],
        unknown: T,
    ) -> None:
        self._new_client, self._ask, self._read = new_client, ask, read
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._open: Future[Any] | None = None
        self._known = unknown
        self._asked = self._reported = _NEVER

    def look(self, wait: float = 0.0) -> T:
        """Return the newest answer. If it is old, ask again and wait for `wait` seconds at most."""
        with self._lock:
            question = self._question(time.monotonic())
        if question is not None:
            self._await(question, wait)
        return self._known

    def _question(self, now: float) -> Future[Any] | None:
        if self._open is None and now - max(self._asked, self._reported) >= _KEPT:
            self._asked = now
            client = self._client = self._client or self._new_client()
            self._open = self._ask(client)
        return self._open

    def _await(self, question: Future[Any], wait: float) -> None:
        try:
            answer = question.result(wait)
        except FutureTimeout:
            with self._lock:  # the caller bounds the wait: see `ask_groups`
                if time.monotonic() - self._asked > _TIMEOUT:
                    self._client = self._open = None
            return
        except Exception:  # noqa: BLE001  brokers restart, and the next call asks again
            with self._lock:  # because a client keeps waiting for a coordinator that died (librdkafka issue 5511)
                self._client = self._open = None
            return
        with self._lock:
            self._known = self._read(answer)
            self._reported, self._open = time.monotonic(), None


def cached_members(
    new_client: Callable[[str], AdminClient], group: str, topic: str
) -> CachedAnswer[tuple[GroupMember, ...]]:
    """Keep the group's members with their partitions of the topic."""
    return CachedAnswer(
        lambda: new_client("members"),
        lambda client: ask_groups(client, [group])[group],
        lambda answer: tuple(sorted(consumer_group(answer, topic).members)),
        (),
    )


def cached_offsets(
    new_client: Callable[[str], AdminClient], group: str, topics: Sequence[str], partitions: int
) -> CachedAnswer[dict[tuple[str, int], int]]:
    """Keep the group's committed offset of each partition that has one, without those of open transactions."""
    places = [TopicPartition(topic, each) for topic in topics for each in range(partitions)]

    def ask(client: AdminClient) -> Future[Any]:
        request = [ConsumerGroupTopicPartitions(group, places)]
        asked: dict[str, Future[Any]] = client.list_consumer_group_offsets(request, request_timeout=NO_TIMEOUT)
        return asked[group]

    return CachedAnswer(
        lambda: new_client("offsets"),
        ask,
        lambda answer: {(at.topic, at.partition): at.offset for at in answer.topic_partitions if at.offset >= 0},
        {},
    )
