"""Time that a test moves by hand."""

from __future__ import annotations


class ManualClock:
    """Monotonic seconds that a test advances. `wall` is the same time in seconds since 1970."""

    def __init__(self, wall: float = 1_750_000_000.0) -> None:
        self._now, self._wall = 0.0, wall

    def __call__(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall + self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
