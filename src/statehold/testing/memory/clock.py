"""Gives tests a clock that they move by hand."""

from __future__ import annotations

from typing import Final

_START: Final = 1_750_000_000.0


class ManualClock:
    """Monotonic seconds that a test advances. `wall` is the same time in seconds since 1970."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def wall(self) -> float:
        return _START + self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
