"""Who is in the group and holds which partitions: one question of `describe_consumer_groups`, its answer kept 5 s."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import AdminClient

from statehold.kafka.admin.futures import NO_TIMEOUT

_KEPT: Final = 5.0
_TIMEOUT: Final = 3.0


class Member(NamedTuple):
    """`client` is `<service>@<advertised url>` of an instance that has an ops server; `host` as the broker sees it."""

    id: str
    client: str
    host: str
    partitions: tuple[int, ...]

    @property
    def url(self) -> str:
        """Of its ops server; '' where it has none."""
        return self.client.partition("@")[2]


class Members:
    """Any thread."""

    def __init__(self, new_client: Callable[[str], AdminClient], group: str, topic: str) -> None:
        self._new_client, self._group, self._topic = new_client, group, topic
        self._lock = threading.Lock()
        self._client: AdminClient | None = None
        self._open: Future[Any] | None = None
        self._known: tuple[Member, ...] = ()
        self._asked = self._told = float("-inf")

    def look(self, wait: float = 0.0) -> tuple[Member, ...]:
        """The newest answer; when it is old it is asked anew, and waited for so many seconds at most."""
        with self._lock:
            question = self._question(time.monotonic())
        if question is not None:
            self._await(question, wait)
        return self._known

    def _question(self, now: float) -> Future[Any] | None:
        if self._open is None and now - max(self._asked, self._told) >= _KEPT:
            self._asked = now
            client = self._client = self._client or self._new_client("members")
            self._open = client.describe_consumer_groups([self._group], request_timeout=NO_TIMEOUT)[self._group]
        return self._open

    def _await(self, question: Future[Any], wait: float) -> None:
        try:
            group = question.result(wait)
        except FutureTimeout:
            with self._lock:  # the wait is ours: see `Admin.is_member`
                if time.monotonic() - self._asked > _TIMEOUT:
                    self._client = self._open = None
            return
        except Exception:  # noqa: BLE001  brokers come and go
            with self._lock:  # one whose coordinator has died goes on waiting for it (librdkafka issue 5511)
                self._client = self._open = None
            return
        with self._lock:
            self._known = tuple(sorted(self._member(each) for each in group.members))
            self._told, self._open = time.monotonic(), None

    def _member(self, member: Any) -> Member:
        held = member.assignment.topic_partitions if member.assignment is not None else ()
        partitions = sorted(place.partition for place in held if place.topic == self._topic)
        return Member(member.member_id, member.client_id, member.host.lstrip("/"), tuple(partitions))
