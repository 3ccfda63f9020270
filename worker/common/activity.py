"""The call of user code in progress, for the watchdog; it costs nothing per record.

The thread that runs the handler writes, the manager's thread reads. No lock, because each write is one assignment.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any, Final

import msgspec

from statehold.api.record import Record

#: lines of a stack that are logged: the innermost ones
_DEPTH: Final = 15


class UserCall(msgspec.Struct, frozen=True, eq=False):
    """One call of the handler's code."""

    #: the method
    doing: str
    #: the thread's id
    thread: int


class Handling(msgspec.Struct, eq=False):
    """The handler call of one partition. `record` is the one being handled, or the first one of on_batch's batch."""

    #: None while no user code runs
    call: UserCall | None = None
    record: Record[Any] | None = None
    #: the records over which the loop of a batch iterates
    rest: list[Record[Any]] = []
    # The watchdog's last observation, and its start (monotonic seconds).
    _seen: tuple[UserCall | None, Record[Any] | None] = (None, None)
    _seen_since: float = 0.0
    _entered: float = 0.0

    def cut(self) -> None:
        """End the batch in progress after the record that is being handled; any thread.

        An emptied list ends the loop over it, so this costs nothing per record. The rest is not lost: the record
        buffer keeps the batch.
        """
        self.rest.clear()

    # The watchdog: one thread

    def look(self, now: float) -> tuple[float, float]:
        """Return the observed seconds that user code has been inside one call, and on one record."""
        call, record = self.call, self.record
        if call is None:
            self._seen = (None, None)
            return 0.0, 0.0
        if call is not self._seen[0]:
            self._entered = self._seen_since = now
        elif record is not self._seen[1]:
            self._seen_since = now
        self._seen = call, record
        return now - self._entered, now - self._seen_since

    def where(self) -> str:
        """Return the method and the record."""
        call, record = self.call, self.record
        doing = call.doing if call is not None else ""
        if record is None or doing in ("on_live", "on_stop"):
            return doing
        return f"{doing} of {record.topic}[{record.partition}]@{record.offset}"

    def stack(self) -> str:
        """Return where the thread is now, innermost line last."""
        call = self.call
        frame = sys._current_frames().get(call.thread) if call is not None else None
        return "".join(traceback.format_stack(frame, _DEPTH)) if frame is not None else "the thread has ended"
