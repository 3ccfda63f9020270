"""Keeps answers of the group's coordinator for 5 s: the members with their partitions, and the committed offsets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, Generic, TypeVar

from confluent_kafka.admin import AdminClient

from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.groups import ask_groups, consumer_group
from statehold.ports import GroupMember

#: seconds that an answer is kept: members change by rebalances, which take longer
_KEPT: Final = 5.0
#: seconds without an answer until a new client asks, because this one may wait for a dead coordinator
_TIMEOUT: Final = 3.0
_NEVER: Final = float("-inf")

C = TypeVar("C")
T = TypeVar("T")


class CachedAnswer(Generic[C, T]):
    """Any thread may use it. `new_client` makes the client that `ask` asks; `read` turns the answer into a value."""

    def __init__(
        self,
        new_client: Callable[[], C],
        ask: Callable[[C], Future[Any]],
        read: Callable[[Any], T],
        unknown: T,
    ) -> None:
        self._new_client, self._ask, self._read = new_client, ask, read
        self._lock = threading.Lock()
        self._client: C | None = None
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
) -> CachedAnswer[AdminClient, tuple[GroupMember, ...]]:
    """Keep the group's members with their partitions of the topic."""
    return CachedAnswer(
        lambda: new_client("members"),
        lambda client: ask_groups(client, [group])[group],
        lambda answer: tuple(sorted(consumer_group(answer, topic).members)),
        (),
    )


def cached_offsets(
    admin: Admin, topics: Sequence[str], partitions: int
) -> CachedAnswer[Admin, dict[tuple[str, int], int]]:
    """Keep the group's committed offset of each partition that has one, without those of open transactions.

    A consumer asks, on a thread, because an AdminClient's request ends the process after a move of the coordinator.
    """

    def read() -> dict[tuple[str, int], int]:
        found = {topic: admin.positions(topic, range(partitions)) for topic in topics}
        return {(topic, partition): offset for topic, each in found.items() for partition, offset in each.items()}

    return CachedAnswer(lambda: admin, lambda _: _in_background(read), lambda answer: answer, {})


def _in_background(call: Callable[[], T]) -> Future[T]:
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001  the caller of `result` gets it
            answer.set_exception(error)

    threading.Thread(target=run, name="group-offsets", daemon=True).start()
    return answer
