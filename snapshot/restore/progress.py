"""Reports the progress of a restore, step by step, to the log, to `status()` and to progress bars.

The partition's own thread updates it. Any thread may call `view`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from typing import Any, Final, Literal, Protocol

import msgspec

from statehold.api.record import Message
from statehold.ports import Clock, Reader
from statehold.snapshot.restore.estimate import Spent
from statehold.state.state import State

#: the steps of a restore, in order; it starts over with another full snapshot if one is unusable
StepName = Literal["commit_record", "full", "local", "deltas", "digest", "replay"]
_value_of = methodcaller("value")
#: seconds between two log lines
_REPORT_EVERY: Final = 3.0
#: seconds after which a step's speed predicts its end
_GUESS_AFTER: Final = 0.25


class RestoreStep(msgspec.Struct):
    """One step. A position is an offset of a topic, or the number of a chunk of a file or store."""

    name: StepName
    #: first position, and the one after the last; equal if the length is unknown
    begin: int
    end: int
    began: float
    position: int
    bytes: int = 0
    records: int = 0
    #: duration in seconds, once it has ended
    seconds: float = 0.0

    def left(self, now: float) -> float | None:
        """Return the seconds until this step ends at its speed so far; None while that is unknown."""
        spent, done = now - self.began, self.position - self.begin
        if done <= 0 or spent < _GUESS_AFTER:
            return None
        return spent * (self.end - self.position) / done


class RoomCheck(Protocol):
    """Checks that the state fits into memory."""

    def foresee(self, keys: int, size: int) -> None:
        """Check the room for a state of `keys` keys, with `size` bytes in a full snapshot.

        :raises MemoryShort: there is too little.
        """

    def look(self, now: float, keys: int) -> None:
        """Check the room while `keys` keys are loaded. It is called often, and raises as `foresee`."""


class Progress:
    """The progress of one restore and the replay after it. It calls `report` every few seconds, even without data."""

    def __init__(
        self, clock: Clock, report: Callable[[dict[str, Any]], None] = lambda view: None, guard: RoomCheck | None = None
    ) -> None:
        self._clock, self._report, self._guard = clock, report, guard
        self._reported = clock()
        self._step: RestoreStep | None = None
        self._state: Callable[[], State | None] = lambda: None
        #: the completed steps, the last of each name
        self.done: dict[str, RestoreStep] = {}

    def watch(self, state: State) -> None:
        """Count the keys of this state. The progress holds only a weak reference to it."""
        self._state = weakref.ref(state)

    def foresee(self, keys: int, size: int) -> None:
        """Check the room for the state that the manifest announces; raises what the guard raises."""
        if self._guard is not None:
            self._guard.foresee(keys, size)

    def enter(self, name: StepName, begin: int = 0, end: int = 0) -> None:
        """Begin the next step, which reads from position `begin` to `end`."""
        self.leave()
        self._step = RestoreStep(name, begin, end, self._clock(), begin)

    def leave(self) -> None:
        """End the current step."""
        step, self._step = self._step, None
        if step is not None:
            step.seconds = self._clock() - step.began
            self.done[step.name] = step

    def spent(self, total: float) -> Spent:
        """Return the seconds of a restore that took `total`, by step."""
        seconds = dict.fromkeys(("full", "local", "deltas", "digest"), 0.0)
        for name in seconds.keys() & self.done.keys():
            seconds[name] = self.done[name].seconds
        fixed = max(0.0, total - sum(seconds.values()))
        return Spent(fixed, seconds["full"], seconds["deltas"], seconds["digest"])

    def advance(self, position: int, size: int, records: int) -> None:
        """Note that all before `position` is read, and that `size` bytes in `records` records were new."""
        step = self._step
        if step is not None:
            step.position, step.bytes, step.records = position, step.bytes + size, step.records + records
        self.tick()

    def tick(self) -> None:
        """Log the progress when it is time. Call it often, even while no data comes: a stalled restore must show."""
        now = self._clock()
        if self._guard is not None:
            state = self._state()
            self._guard.look(now, state.keys if state is not None else 0)
        if now - self._reported >= _REPORT_EVERY and (view := self.view()) is not None:
            self._reported = now
            self._report(view)

    def view(self) -> dict[str, Any] | None:
        """Return the progress for people and programs; None between steps."""
        step, state, now = self._step, self._state(), self._clock()
        if step is None:
            return None
        spent = now - step.began
        left = step.left(now)
        return {
            "step": step.name,
            "position": step.position,
            "begin": step.begin,
            "end": step.end,
            "bytes": step.bytes,
            "keys": state.keys if state is not None else 0,
            "bytes_per_second": round(step.bytes / spent) if spent > 0 else 0,
            "seconds": round(spent, 3),
            "left": None if left is None else round(left, 1),
        }


class WatchedReader:
    """A reader that updates the progress after each batch, of at most `records` records."""

    def __init__(self, reader: Reader, progress: Progress, records: int = 1_000_000) -> None:
        self._reader, self._progress, self._records = reader, progress, records
        self.bounds, self.cancelled, self.close = reader.bounds, reader.cancelled, reader.close

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        for read in self._reader.read(topic, partition, start, end, most):
            for first in range(0, len(read), self._records):
                batch = read[first : first + self._records]
                yield batch
                # Afterwards, because a slow handler is not a fast read.
                size = sum(map(len, filter(None, map(_value_of, batch))))
                self._progress.advance((batch[-1].offset() or 0) + 1, size, len(batch))
