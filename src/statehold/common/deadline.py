"""A deadline on the monotonic clock, and timers of an event loop that many waits share."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

W = TypeVar("W")

#: a tick takes a 256th of the power of two above the time, so at most a 128th of the time
_PRECISION: Final = 8
#: seconds: shorter times have ticks as if they took so long, and longer ones end then
_SHORTEST: Final = 0.25
_LONGEST: Final = 1e9


class Deadline:
    """Begins to run when it is made."""

    def __init__(self, seconds: float) -> None:
        self._began, self._seconds = time.monotonic(), seconds

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds until it passes; 0 afterwards."""
        return max(0.0, self._seconds - self.elapsed)

    @property
    def passed(self) -> bool:
        return self.elapsed >= self._seconds


class SharedTimers(Generic[W]):
    """Ends waits on an event loop when their time is over. Those whose time ends with the same tick share a timer.

    Used by the loop's thread.
    """

    def __init__(self, end: Callable[[W], None]) -> None:
        """`end` ends one wait."""
        self._end = end
        #: by the length of the tick, a power of two, and its number
        self._waits: dict[tuple[int, int], set[W]] = {}

    def add(self, loop: asyncio.AbstractEventLoop, wait: W, seconds: float) -> set[W]:
        """Let a wait end a hundredth of this time too late at most, or 2 ms, unless the set has it no more."""
        seconds = min(seconds, _LONGEST)
        power = math.frexp(max(seconds, _SHORTEST))[1] - _PRECISION
        tick = power, math.ceil(math.ldexp(loop.time() + seconds, -power))
        waits = self._waits.get(tick)
        if waits is None:
            waits = self._waits[tick] = set()
            loop.call_at(math.ldexp(tick[1], power), self._over, tick)
        waits.add(wait)
        return waits

    def _over(self, tick: tuple[int, int]) -> None:
        for wait in self._waits.pop(tick):
            self._end(wait)
