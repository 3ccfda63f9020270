"""Keeps the members of the group and their partitions for 5 s."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from statehold.kafka.admin.groups import ask_groups, consumer_group
from statehold.ports import GroupMember

#: seconds that an answer is kept: members change by rebalances, which take longer
_KEPT: Final = 5.0
#: seconds without an answer until a new client asks, because this one may wait for a dead coordinator
_TIMEOUT: Final = 3.0
_NEVER: Final = float("-inf")


class CachedMembers:
    """Any thread may use it."""

    def __init__(self, new_client: Callable[[str], AdminClient], group: str, topic: str) -> None:
        self._new_client, self._group, self._topic = new_client, group, topic
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._open: Future[Any] | None = None
        self._known: tuple[GroupMember, ...] = ()
        self._asked = self._told = _NEVER

    def look(self, wait: float = 0.0) -> tuple[GroupMember, ...]:
        """Return the newest answer. If it is old, ask again and wait for `wait` seconds at most."""
        with self._lock:
            question = self._question(time.monotonic())
        if question is not None:
            self._await(question, wait)
        return self._known

    def _question(self, now: float) -> Future[Any] | None:
        if self._open is None and now - max(self._asked, self._told) >= _KEPT:
            self._asked = now
            client = self._client = self._client or self._new_client("members")
            self._open = ask_groups(client, [self._group])[self._group]
        return self._open

    def _await(self, question: Future[Any], wait: float) -> None:
        try:
            group = question.result(wait)
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
            self._known = tuple(sorted(consumer_group(group, self._topic).members))
            self._told, self._open = time.monotonic(), None
