"""Forecasts when retention deletes the next record: a lower bound in hours; 0 means already deletable. Pure.

By time: Kafka deletes a record at the earliest `retention.ms` after its timestamp, because it deletes whole segments by
their newest record. By size: at the earliest when `retention.bytes` have been written after it, at the measured rate.
Record sizes are taken before compression.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

#: Longest period in seconds over which the rate is measured.
_WINDOW: Final = 3600.0
#: Upper bound of a record's bytes in the log in addition to key, value and headers.
RECORD_OVERHEAD: Final = 70


class Retention(NamedTuple):
    """A topic's retention settings; -1 means no limit."""

    milliseconds: int = -1
    bytes: int = -1

    @classmethod
    def of(cls, settings: dict[str, str]) -> Retention:
        """Parse the result of DescribeConfigs. A topic that is only compacted has no limit."""
        if "delete" not in settings.get("cleanup.policy", "delete"):
            return cls()
        return cls(int(settings.get("retention.ms", "-1")), int(settings.get("retention.bytes", "-1")))


class UnreadRecords(NamedTuple):
    """The records from the next offset on."""

    #: Number of offsets up to the end.
    offsets: int
    #: Timestamp of the next record in milliseconds since 1970; None if every record is processed.
    time: int | None


class Rate:
    """Growth of a partition in offsets per second. Single-threaded."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def saw(self, now: float, end: int) -> None:
        """Add an observation of the end offset at monotonic time `now`."""
        if self._seen and end < self._seen[-1][1]:
            self._seen.clear()  # the topic was created again
        self._seen.append((now, end))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _WINDOW:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        """The rate; 0 before the second observation."""
        if len(self._seen) < 2:
            return 0.0
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began else 0.0


def hours_left(
    retention: Retention, ahead: UnreadRecords, record_bytes: float, per_second: float, wall: float
) -> float:
    """Return a lower bound in hours; `inf` without a limit, 0 if Kafka may delete the next record at any time.

    `record_bytes` is the mean size of a record with its overhead, `per_second` the growth in offsets, `wall` the
    current time in seconds since 1970.
    """
    return max(0.0, min(_by_time(retention, ahead, wall), _by_size(retention, ahead, record_bytes, per_second)))


def _by_time(retention: Retention, ahead: UnreadRecords, wall: float) -> float:
    if retention.milliseconds < 0:
        return math.inf
    began = wall if ahead.time is None else min(wall, ahead.time / 1000)
    return (began + retention.milliseconds / 1000 - wall) / 3600


def _by_size(retention: Retention, ahead: UnreadRecords, record_bytes: float, per_second: float) -> float:
    if retention.bytes < 0:
        return math.inf
    left = retention.bytes - ahead.offsets * record_bytes
    if left <= 0:
        return 0.0
    rate = per_second * record_bytes
    return left / rate / 3600 if rate > 0 else math.inf
