"""What will happen by itself, in the order of virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from statehold.ports import Clock


class FutureEvent:
    """One future call. `cancel` takes it back."""

    __slots__ = ("call", "when")

    def __init__(self, when: float, call: Callable[[], object]) -> None:
        self.when = when
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class FutureEvents:
    """Runs calls when the clock has reached their time; calls of one time run in the order of their making."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._heap: list[tuple[float, int, FutureEvent]] = []
        self._numbers = count()

    def at(self, when: float, call: Callable[[], object]) -> FutureEvent:
        timer = FutureEvent(when, call)
        heapq.heappush(self._heap, (when, next(self._numbers), timer))
        return timer

    def after(self, seconds: float, call: Callable[[], object]) -> FutureEvent:
        return self.at(self.clock() + seconds, call)

    def next(self) -> float | None:
        """Return the time of the next call; None if nothing will happen."""
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_due(self) -> None:
        """Run all calls whose time has come, also those that they add for now."""
        heap, clock = self._heap, self.clock
        while heap and heap[0][0] <= clock():
            call = heapq.heappop(heap)[2].call
            if call is not None:
                call()
