"""Results of other threads for the coroutines of an event loop: one wake-up hands over all that have come.

One timer ends the waits whose times end together: `asyncio.wait_for` makes a timer and a second future for each.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from statehold.common.deadline import SharedTimers

V = TypeVar("V")


class Arrivals:
    """Those of one event loop. A wake-up for each would let the thread that brings them wait for the loop each time."""

    def __init__(self) -> None:
        # Without its loop, which would otherwise never be collected.
        self._arrived: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._woken = False
        self.limits = SharedTimers(_time_over)

    def awaitable(self, result: Future[V]) -> asyncio.Future[V]:
        """Return what a coroutine of the loop, which runs this, awaits; cancelling it leaves `result` alone."""
        waiting: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        result.add_done_callback(partial(self.bring, waiting))
        return waiting

    def bring(self, waiting: asyncio.Future[V], done: Future[V]) -> None:
        """Hand a result over. Any thread may call it."""
        self._arrived.append((waiting, done))
        if not self._woken:
            self._woken = True
            try:
                waiting.get_loop().call_soon_threadsafe(self._hand_over)
            except RuntimeError:  # the loop is closed, so its coroutines wait no more
                self._arrived.clear()
                self._woken = False

    def _hand_over(self) -> None:
        self._woken = False  # first, because what arrives from here on may find an empty queue
        while self._arrived:
            waiting, done = self._arrived.popleft()
            if waiting.done():  # it was cancelled, or its time is over
                continue
            error = done.exception()
            if error is None:
                waiting.set_result(done.result())
            else:
                waiting.set_exception(error)


_LOCK: Final = threading.Lock()
_ARRIVALS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Arrivals]] = WeakKeyDictionary()


def arrivals_here() -> Arrivals:
    """Return those of the running loop."""
    loop = asyncio.get_running_loop()
    with _LOCK:
        arrivals = _ARRIVALS.get(loop)
        if arrivals is None:
            for ended in [each for each in _ARRIVALS if each.is_closed()]:  # what arrived at its end keeps it
                del _ARRIVALS[ended]
            arrivals = _ARRIVALS[loop] = Arrivals()
    return arrivals


async def within(result: Future[V], seconds: float) -> V:
    """Await a result; cancelling this leaves `result` alone.

    :raises TimeoutError: it has not come within this time.
    """
    arrivals = arrivals_here()
    waiting = arrivals.awaitable(result)
    limited = arrivals.limits.add(waiting.get_loop(), waiting, seconds)
    try:
        return await waiting
    finally:
        limited.discard(waiting)


def _time_over(waiting: asyncio.Future[Any]) -> None:
    if not waiting.done():
        waiting.set_exception(TimeoutError())
