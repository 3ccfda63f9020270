"""Keeps the end offsets of the inputs: last stable offset and high watermark. No caller waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from confluent_kafka import IsolationLevel

from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.futures import LATEST, ask_offsets, require_offset

#: seconds between two requests, while callers look
_EVERY: Final = 2.0
#: seconds for one request
_TIMEOUT: Final = 5.0
#: seconds after which an answer counts as unknown
_STALE: Final = 30.0


class End(NamedTuple):
    """An open transaction hides the records between `stable` and `high`. `at` is in monotonic seconds."""

    stable: int
    high: int
    at: float


class CachedEnds:
    """Any thread may use it; `look` never waits."""

    def __init__(self, admin: Admin, topics: Sequence[str]) -> None:
        self._admin, self._topics = admin, topics
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], End] = {}
        self._open: list[tuple[tuple[str, int], Future[Any], Future[Any]]] = []
        self._asked = float("-inf")

    def look(self, partitions: Iterable[int]) -> dict[tuple[str, int], End]:
        """Return what is known of these partitions of each topic, and ask again if the last request is old."""
        now, wanted = time.monotonic(), list(partitions)
        with self._lock:
            self._collect(now)
            if wanted and not self._open and now - self._asked >= _EVERY:
                self._asked = now
                self._ask(wanted)
            places = [(topic, p) for topic in self._topics for p in wanted]
            return {at: end for at in places if (end := self._known.get(at)) is not None and now - end.at < _STALE}

    def _ask(self, partitions: list[int]) -> None:
        client, places = self._admin.client, [(topic, p) for topic in self._topics for p in partitions]
        stable = ask_offsets(client, places, LATEST, IsolationLevel.READ_COMMITTED, _TIMEOUT)
        high = ask_offsets(client, places, LATEST, IsolationLevel.READ_UNCOMMITTED, _TIMEOUT)
        self._open = [(place, stable[place], high[place]) for place in places]

    def _collect(self, now: float) -> None:
        if not all(stable.done() and high.done() for _, stable, high in self._open):
            return
        open_, self._open = self._open, []
        failed = False
        for place, stable, high in open_:
            try:
                first, last = require_offset(stable.result(0).offset), require_offset(high.result(0).offset)
            except Exception:  # noqa: BLE001  brokers restart, and the next request may succeed
                failed = True
            else:
                self._known[place] = End(first, max(first, last), now)
        for topic in self._topics if failed else ():
            self._admin.look_again(topic)
