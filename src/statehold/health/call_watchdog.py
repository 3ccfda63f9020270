"""Calls that must come back: whoever begins one says how long it may take, and a thread looks at those under way.

It counts only time in which it was awake itself: a process that was frozen, or whose interpreter was held by one
call, wakes up to calls that are no older than before.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Protocol, Self

from statehold.errors import StuckCall
from statehold.ports import Clock
from statehold.telemetry.log_events import Log

_LOOK_EVERY: Final = 0.5
#: of a longer sleep than this the watch knows that it was not its own
_LONGEST_LOOK: Final = 2.0

Overdue = Callable[[StuckCall], object]


class Watching(Protocol):
    """What somebody needs who makes such calls."""

    def call(self, what: str, limit: float, *, partition: int = -1) -> AbstractContextManager[object]:
        """Around a call of this thread: told once when it is still under way after `limit` seconds."""
        ...


class Unwatched:
    """For tools: their user is there and sees that nothing happens."""

    def call(self, what: str, limit: float, *, partition: int = -1) -> AbstractContextManager[object]:
        return nullcontext()


class Call:
    """One call under way. Cheap: it is made for each Kafka call and each batch of a handler."""

    __slots__ = ("_calls", "_overdue", "age", "limit", "partition", "thread", "told", "what")

    def __init__(self, calls: dict[int, Call], what: str, limit: float, partition: int, overdue: Overdue) -> None:
        self._calls, self.what, self.limit, self.partition, self._overdue = calls, what, limit, partition, overdue
        self.age, self.told, self.thread = 0.0, False, 0

    def __enter__(self) -> Self:
        self.thread = threading.get_ident()
        self._calls[id(self)] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._calls[id(self)]

    def tell(self, log: Log) -> None:
        """Once: the stack into the log, the error to whoever must act on it. The watch's thread."""
        self.told = True
        stuck = StuckCall(
            f"{self.what} has not come back for {self.age:.0f} s, though it may take {self.limit:.0f} s at most",
            partition=self.partition,
        )
        where = {"partition": self.partition} if self.partition >= 0 else {}
        log.error("stuck", doing=self.what, seconds=round(self.age, 1), stack=stack_of(self.thread), **where)
        self._overdue(stuck)


class Watch:
    """`call` may be used by any thread, nested too; `overdue` is called by the watch's own thread."""

    def __init__(self, clock: Clock, log: Log, overdue: Overdue) -> None:
        self._clock, self._log, self._overdue = clock, log, overdue
        self._calls: dict[int, Call] = {}
        self._ending = threading.Event()
        self._last = clock()

    def call(
        self, what: str, limit: float, *, partition: int = -1, overdue: Overdue | None = None
    ) -> AbstractContextManager[object]:
        """As `Watching.call`; `overdue` in place of the watch's own."""
        return Call(self._calls, what, limit, partition, overdue or self._overdue)

    def start(self) -> None:
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def close(self) -> None:
        self._ending.set()

    def stuck(self) -> list[dict[str, Any]]:
        """For `status()`: the calls that are overdue and still under way; any thread."""
        found = [call for call in list(self._calls.values()) if call.told]
        return [{"doing": call.what, "partition": call.partition, "seconds": round(call.age, 1)} for call in found]

    def look(self) -> None:
        """Everything under way is so much older; what is overdue now is told."""
        now = self._clock()
        passed, self._last = min(now - self._last, _LONGEST_LOOK), now
        for call in list(self._calls.values()):
            call.age += passed
            if call.age > call.limit and not call.told:
                call.tell(self._log)

    def _run(self) -> None:
        while not self._ending.wait(_LOOK_EVERY):
            self.look()


def stack_of(thread: int) -> str:
    """Where a thread is now, innermost call last; '' when it has ended."""
    frame = sys._current_frames().get(thread)
    return "".join(traceback.format_stack(frame)).rstrip() if frame is not None else ""
