"""Watchdog for calls with deadlines: the caller sets a time limit, and a thread checks the calls in progress.

The thread counts only time in which it ran itself. A freeze of the process or the interpreter therefore does not make
calls older.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Self

from statehold.errors import StuckCall
from statehold.ports import Clock
from statehold.telemetry.log_events import Log

_LOOK_EVERY: Final = 0.5
#: Longest time in seconds that one check adds: what this thread waits between two. If it was away for longer, it did
#: not get the processor or the interpreter, and the calls' threads may not have got them either: 200 partitions that
#: fence at once on a busy machine are slow, not stuck.
_LONGEST_LOOK: Final = _LOOK_EVERY

Overdue = Callable[[StuckCall], object]


class WatchedCall:
    """One call in progress. Cheap, because every Kafka call and every handler batch creates one."""

    __slots__ = ("_calls", "_overdue", "age", "limit", "partition", "reported", "thread", "what")

    def __init__(
        self, calls: dict[int, WatchedCall], what: str, limit: float, partition: int, overdue: Overdue
    ) -> None:
        self._calls, self.what, self.limit, self.partition, self._overdue = calls, what, limit, partition, overdue
        self.age, self.reported, self.thread = 0.0, False, 0

    def __enter__(self) -> Self:
        self.thread = threading.get_ident()
        self._calls[id(self)] = self
        return self

    def __exit__(self, *_: object) -> None:
        del self._calls[id(self)]

    def report(self, log: Log) -> None:
        """Log the call's stack and report the error, once. Watchdog thread."""
        self.reported = True
        stuck = StuckCall(
            f"{self.what} has not returned for {self.age:.0f} s; its limit is {self.limit:.0f} s",
            partition=self.partition,
        )
        where = {"partition": self.partition} if self.partition >= 0 else {}
        log.error("stuck", doing=self.what, seconds=round(self.age, 1), stack=stack_of(self.thread), **where)
        self._overdue(stuck)


class CallWatchdog:
    """Watches calls of any thread, also nested ones. The watchdog's thread calls `overdue`."""

    def __init__(self, clock: Clock, log: Log, overdue: Overdue) -> None:
        self._clock, self._log, self._overdue = clock, log, overdue
        self._calls: dict[int, WatchedCall] = {}
        self._ending = threading.Event()
        self._last = clock()

    def call(
        self, what: str, limit: float, *, partition: int = -1, overdue: Overdue | None = None
    ) -> AbstractContextManager[object]:
        """Return a context that watches a call of this thread and reports it once after `limit` seconds.

        `overdue` replaces the watchdog's.
        """
        return WatchedCall(self._calls, what, limit, partition, overdue or self._overdue)

    def start(self) -> None:
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def close(self) -> None:
        self._ending.set()

    def stuck(self) -> list[dict[str, Any]]:
        """Return the overdue calls in progress, for `status()`. Any thread."""
        found = [call for call in list(self._calls.values()) if call.reported]
        return [{"doing": call.what, "partition": call.partition, "seconds": round(call.age, 1)} for call in found]

    def look(self) -> None:
        """Add the elapsed time to every call in progress, and report those that are overdue."""
        now = self._clock()
        passed, self._last = min(now - self._last, _LONGEST_LOOK), now
        for call in list(self._calls.values()):
            call.age += passed
            if call.age > call.limit and not call.reported:
                call.report(self._log)

    def _run(self) -> None:
        while not self._ending.wait(_LOOK_EVERY):
            self.look()


def stack_of(thread: int) -> str:
    """Return the stack of a thread, innermost call last; '' if it has ended."""
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)).rstrip() if frame is not None else ""
