"""Keeps the newest 200 log events of a service in memory, for the ops console."""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from typing import Any, Final

_KEPT: Final = 200
#: Events that are too frequent for the history.
_NOISE: Final = frozenset({"restore_progress", "kafka_log", "kafka_retry", "producer_identity"})


class RecentEvents:
    """The newest log events. Any thread may add and read."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=kept)
        self._number = count(1)

    def note(self, level: str, event: str, fields: dict[str, object]) -> None:
        if event in _NOISE:
            return
        told = {key: value for key, value in fields.items() if key not in ("service", "exc_info") and value is not None}
        self._events.append({"number": next(self._number), "time": time.time(), "level": level, "event": event, **told})

    def after(self, number: int) -> list[dict[str, Any]]:
        """Return the events with a greater number, oldest first."""
        return [event for event in self._events.copy() if event["number"] > number]
