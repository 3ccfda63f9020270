"""How long until the input's retention deletes what comes next: a lower bound, from what the topic tells (pure).

By time: a record goes `retention.ms` after its timestamp at the earliest, because Kafka deletes whole segments by their
newest record. By size: at the earliest when as much as `retention.bytes` has come after it; how fast that comes is
measured, and records are counted at the size they have before compression.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

#: rates are measured over this many seconds at most
_WINDOW: Final = 3600.0
#: a record's own bytes in a log beside key, value and headers, generously
RECORD_OVERHEAD: Final = 70


class Retention(NamedTuple):
    """A topic's settings; -1 is without a limit."""

    milliseconds: int = -1
    bytes: int = -1

    @classmethod
    def of(cls, settings: dict[str, str]) -> Retention:
        """As DescribeConfigs gives them; a topic that is only compacted deletes nothing by age or size."""
        if "delete" not in settings.get("cleanup.policy", "delete"):
            return cls()
        return cls(int(settings.get("retention.ms", "-1")), int(settings.get("retention.bytes", "-1")))


class Ahead(NamedTuple):
    """What lies from the next record on."""

    #: offsets up to the end
    offsets: int
    #: timestamp of the next record, milliseconds since 1970; None where everything was handled
    time: int | None


class Rate:
    """Offsets per second at which a partition grows; of one thread."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def saw(self, now: float, end: int) -> None:
        """`now` in monotonic seconds."""
        if self._seen and end < self._seen[-1][1]:
            self._seen.clear()  # another topic of the same name
        self._seen.append((now, end))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _WINDOW:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        """0 until two looks were taken."""
        if len(self._seen) < 2:
            return 0.0
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began else 0.0


def hours_left(retention: Retention, ahead: Ahead, record_bytes: float, per_second: float, wall: float) -> float:
    """At least so many hours; `inf` without a limit, 0 where it may go any moment.

    `record_bytes` is the mean size of a record with its overhead, `per_second` the offsets that come, `wall` now in
    seconds since 1970.
    """
    return max(0.0, min(_by_time(retention, ahead, wall), _by_size(retention, ahead, record_bytes, per_second)))


def _by_time(retention: Retention, ahead: Ahead, wall: float) -> float:
    if retention.milliseconds < 0:
        return math.inf
    began = wall if ahead.time is None else min(wall, ahead.time / 1000)
    return (began + retention.milliseconds / 1000 - wall) / 3600


def _by_size(retention: Retention, ahead: Ahead, record_bytes: float, per_second: float) -> float:
    if retention.bytes < 0:
        return math.inf
    left = retention.bytes - ahead.offsets * record_bytes
    if left <= 0:
        return 0.0
    rate = per_second * record_bytes
    return left / rate / 3600 if rate > 0 else math.inf
