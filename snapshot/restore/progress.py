"""How far a restore has come: step by step, for the log, `status()` and the bars of a terminal.

The partition's own thread moves it; `view` may be called by any thread.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from statehold.ports import Clock, Reader
from statehold.record import Message
from statehold.snapshot.restore.estimate import Spent
from statehold.snapshot.state import State

#: the steps of a restore, in their order; a full that is unusable makes it start with another one
StepName = Literal["mark", "full", "local", "increments", "digest", "replay"]
#: seconds between two lines in the log
_TELL_EVERY: Final = 3.0
#: seconds after which a step's speed says something about its end
_GUESS_AFTER: Final = 0.25


class Step(msgspec.Struct):
    """One step. Positions are offsets of its topic, or chunks of a file or store; bytes as they were read."""

    name: StepName
    #: first position, and the one behind the last; equal where nobody can know
    begin: int
    end: int
    began: float
    position: int
    bytes: int = 0
    records: int = 0
    #: seconds that it took, once it is over
    seconds: float = 0.0

    def left(self, now: float) -> float | None:
        """Seconds until this step's end at its speed so far; None while that is not known."""
        spent, done = now - self.began, self.position - self.begin
        if done <= 0 or spent < _GUESS_AFTER:
            return None
        return spent * (self.end - self.position) / done


class Guard(Protocol):
    """Whether there is room for the state that is coming."""

    def foresee(self, keys: int, size: int) -> None:
        """So many keys, so many bytes of them in a full.

        :raises MemoryShort: there is no room.
        """

    def look(self, now: float, keys: int) -> None:
        """So many are there; often. Raises as `foresee`."""


class Progress:
    """Of one restore and the replay after it. `tell` is called every few seconds, also while nothing comes."""

    def __init__(
        self, clock: Clock, tell: Callable[[dict[str, Any]], None] = lambda view: None, guard: Guard | None = None
    ) -> None:
        self._clock, self._tell, self._guard = clock, tell, guard
        self._told = clock()
        self._step: Step | None = None
        self._state: Callable[[], State | None] = lambda: None
        #: the steps that are over, the last of each name
        self.done: dict[str, Step] = {}

    def watch(self, state: State) -> None:
        """Whose keys are counted; it is not kept alive by this."""
        self._state = weakref.ref(state)

    def foresee(self, keys: int, size: int) -> None:
        """What the state will be, as far as mark and manifest tell: raises what the guard raises."""
        if self._guard is not None:
            self._guard.foresee(keys, size)

    def enter(self, name: StepName, begin: int = 0, end: int = 0) -> None:
        """The next step begins, and reaches from position `begin` to `end`."""
        self.leave()
        self._step = Step(name, begin, end, self._clock(), begin)

    def leave(self) -> None:
        """The step is over."""
        step, self._step = self._step, None
        if step is not None:
            step.seconds = self._clock() - step.began
            self.done[step.name] = step

    def spent(self, total: float) -> Spent:
        """The seconds of a restore that took `total`, by step; what is left of it was no step's."""
        full, local, increments, digest = map(self._seconds, ("full", "local", "increments", "digest"))
        return Spent(max(0.0, total - full - local - increments - digest), full, increments, digest)

    def _seconds(self, name: str) -> float:
        return self.done[name].seconds if name in self.done else 0.0

    def advance(self, position: int, size: int, records: int) -> None:
        """All before `position` is read; `size` bytes in `records` records of it were new."""
        step = self._step
        if step is not None:
            step.position, step.bytes, step.records = position, step.bytes + size, step.records + records
        self.tick()

    def tick(self) -> None:
        """Called often, also by who waits for data: a restore that stands still has to say so."""
        now = self._clock()
        if self._guard is not None:
            state = self._state()
            self._guard.look(now, state.keys if state is not None else 0)
        if now - self._told >= _TELL_EVERY and (view := self.view()) is not None:
            self._told = now
            self._tell(view)

    def view(self) -> dict[str, Any] | None:
        """What people and programs are shown; None between steps."""
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
    """A reader that moves the progress with each batch it gives, of at most `records` records."""

    def __init__(self, reader: Reader, progress: Progress, records: int = 1_000_000) -> None:
        self._reader, self._progress, self._records = reader, progress, records

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        return self._reader.bounds(topic, partition)

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        for read in self._reader.read(topic, partition, start, end, most):
            yield from self._moving(read)

    def _moving(self, read: Sequence[Message]) -> Iterator[Sequence[Message]]:
        """Moved when a batch has been worked on: a slow handler is no fast read."""
        for first in range(0, len(read), self._records):
            batch = read[first : first + self._records]
            yield batch
            size = sum(map(len, filter(None, (message.value() for message in batch))))
            self._progress.advance((batch[-1].offset() or 0) + 1, size, len(batch))

    def cancelled(self) -> bool:
        return self._reader.cancelled()

    def close(self) -> None:
        self._reader.close()
