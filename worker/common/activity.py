"""What a handler is doing right now, for whoever looks after its thread; it costs nothing per record.

The thread that runs the handler writes, the manager's thread reads. No lock: each is one assignment.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any, Final

from statehold.record import Record

#: lines of a stack that are told: the innermost ones
_DEPTH: Final = 15


class Handling:
    """Of one partition. `record` is the one being handled, or the first of the batch that on_batch was given."""

    def __init__(self) -> None:
        #: the user's method that is running; "" while none is
        self.doing = ""
        self.record: Record[Any] | None = None
        #: how often the user's code was entered: a batch counts once
        self._calls = 0
        #: what the loop over the records of a batch goes through
        self._rest: list[Record[Any]] = []
        self._thread = 0
        # Of whoever looks: what was seen, and since when (monotonic seconds).
        self._seen: tuple[int, Record[Any] | None] = (0, None)
        self._seen_since = self._entered = 0.0

    # The handler's thread

    def enter(self, doing: str, thread: int, rest: list[Record[Any]] | None = None) -> None:
        """The user's code begins; `rest` may be cut short by `cut`."""
        self._thread, self._rest = thread, [] if rest is None else rest
        self._calls += 1
        self.doing = doing

    def leave(self) -> None:
        self.doing, self._rest = "", []

    # Whoever looks after it: one thread

    def cut(self) -> None:
        """End the batch under way after the record that is being handled.

        A list that is emptied ends the loop over it: that is how it costs nothing per record. The rest is not lost, the
        raw batch is kept elsewhere.
        """
        self._rest.clear()

    def look(self, now: float) -> tuple[float, float]:
        """For how many seconds the user's code has been inside one call, and on one record, as far as was seen."""
        calls, record, doing = self._calls, self.record, self.doing
        if not doing:
            self._seen = (0, None)
            return 0.0, 0.0
        if calls != self._seen[0]:
            self._entered = self._seen_since = now
        elif record is not self._seen[1]:
            self._seen_since = now
        self._seen = calls, record
        return now - self._entered, now - self._seen_since

    @property
    def call(self) -> int:
        """The number of the call that is under way, 0 while none is."""
        return self._calls if self.doing else 0

    def where(self) -> str:
        """Which method, of which record."""
        record = self.record
        if record is None or self.doing in ("on_live", "on_stop"):
            return self.doing
        return f"{self.doing} of {record.topic}[{record.partition}]@{record.offset}"

    def stack(self) -> str:
        """Where the thread is now, innermost line last."""
        frame = sys._current_frames().get(self._thread)
        return "".join(traceback.format_stack(frame, _DEPTH)) if frame is not None else "the thread has ended"
