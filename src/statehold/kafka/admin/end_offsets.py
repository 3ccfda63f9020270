"""Where the input ends: the last stable offset, and the high watermark. Asked in the background, never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from confluent_kafka import IsolationLevel, TopicPartition

from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.futures import LATEST, told

#: seconds between two questions, while somebody looks
_EVERY: Final = 2.0
_TIMEOUT: Final = 5.0
#: seconds after which an answer is no answer any more
_STALE: Final = 30.0


class End(NamedTuple):
    """`stable` <= `high`; between them an open transaction hides records. `at` in monotonic seconds."""

    stable: int
    high: int
    at: float


class CachedEnds:
    """Any thread; `look` returns at once with what the questions before it have brought."""

    def __init__(self, admin: Admin, topic: str) -> None:
        self._admin, self._topic = admin, topic
        self._lock = threading.Lock()
        self._known: dict[int, End] = {}
        self._open: list[tuple[int, Future[Any], Future[Any]]] = []
        self._asked = float("-inf")

    def look(self, partitions: Iterable[int]) -> dict[int, End]:
        """What is known of these partitions, and a new question if the last one is old."""
        now, wanted = time.monotonic(), list(partitions)
        with self._lock:
            self._collect(now)
            if wanted and not self._open and now - self._asked >= _EVERY:
                self._asked = now
                self._ask(wanted)
            return {p: end for p in wanted if (end := self._known.get(p)) is not None and now - end.at < _STALE}

    def _ask(self, partitions: list[int]) -> None:
        stable, high = (
            self._question(partitions, IsolationLevel.READ_COMMITTED),
            self._question(partitions, IsolationLevel.READ_UNCOMMITTED),
        )
        self._open = [(p, stable[p], high[p]) for p in partitions]

    def _question(self, partitions: list[int], isolation: IsolationLevel) -> dict[int, Future[Any]]:
        wanted = {TopicPartition(self._topic, partition): LATEST for partition in partitions}
        futures = self._admin.client.list_offsets(wanted, isolation_level=isolation, request_timeout=_TIMEOUT)
        return {place.partition: future for place, future in futures.items()}

    def _collect(self, now: float) -> None:
        if not all(stable.done() and high.done() for _, stable, high in self._open):
            return
        open_, self._open = self._open, []
        failed = False
        for partition, stable, high in open_:
            try:
                first, last = told(stable.result(0).offset), told(high.result(0).offset)
            except Exception:  # noqa: BLE001  brokers come and go; what is not known is not told
                failed = True
            else:
                self._known[partition] = End(first, max(first, last), now)
        if failed:
            self._admin.look_again(self._topic)
