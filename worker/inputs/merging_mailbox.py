"""The mailbox of a partition with several inputs: takes the records of each, and gives out one sequence."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final

from statehold.api.record import Message
from statehold.common.threads import SYSTEM, Threads
from statehold.ports import Clock
from statehold.worker.common.mailbox import Batch, Mailbox
from statehold.worker.inputs.merge import Merge, Order
from statehold.worker.inputs.turns import Turn

#: most records that are merged at once, because the readers wait meanwhile
_PORTION: Final = 5_000


class MergingMailbox(Mailbox):
    """`put` is not used: the readers of the inputs call `add` and `end`, each on its own thread."""

    def __init__(
        self,
        *,
        order: Order,
        idle: float,
        clock: Clock,
        threads: Threads = SYSTEM,
        latest: Callable[[], int] | None = None,
        own: Container[int] = (),
    ) -> None:
        """`latest`: the highest timestamp that counts in a merge by time; None: any. `own`: see `Merge`."""
        super().__init__(threads)
        self._order, self._idle, self._clock, self._latest, self._own = order, idle, clock, latest, own
        #: None while the partition is not live
        self._merge: Merge | None = None

    def begin(self, positions: Sequence[int], first: Sequence[Turn] = ()) -> int:
        """Worker thread: drop everything, and take records from these positions of the inputs; return the stream.

        `first`: the order of the first records.
        """
        with self._changed:
            stream = super().open_stream()
            self._merge = Merge(
                positions, order=self._order, idle=self._idle, first=first, latest=self._latest, own=self._own
            )
            return stream

    def open_stream(self) -> int:
        """Worker thread: drop everything, and take nothing before `begin`."""
        with self._changed:
            self._merge = None
            return super().open_stream()

    def add(self, stream: int, input: int, messages: Sequence[Message]) -> int:
        """Take the next records of an input. Return how many of it wait; those of an older stream are dropped."""
        return self._note(stream, input, messages)

    def end(self, stream: int, input: int) -> None:
        """Note that the broker has no record of this input behind those that came."""
        self._note(stream, input, None)

    def held(self, stream: int, input: int) -> int:
        """Return how many records of an input wait. Any thread."""
        merge = self._merge
        return merge.held(input) if merge is not None and stream == self._stream else 0

    def take(self, room: int, timeout: float) -> Batch | None:
        """Worker thread: return the next records; None after `timeout` seconds or on a signal."""
        until = self._clock() + timeout
        with self._changed:
            while True:
                merge, now = self._merge, self._clock()
                signalled, self._signalled = self._signalled, False
                if merge is not None:
                    previous = merge.position
                    messages = merge.next(min(room, _PORTION), now)
                    self._measure(merge, now)
                    if messages:
                        return Batch(self._stream, previous, messages)
                if signalled or now >= until:
                    return None
                waits = merge.waits(now) if merge is not None else 0.0
                self._changed.wait(min(until - now, waits) if waits > 0 else until - now)

    def _note(self, stream: int, input: int, messages: Sequence[Message] | None) -> int:
        with self._changed:
            merge, now = self._merge, self._clock()
            if merge is None or stream != self._stream:
                return 0
            if messages is None:
                merge.end(input, now)
            else:
                merge.add(input, messages)
            self._measure(merge, now)
            if self.depth or (messages is None and merge.depth):  # from an end on the thread waits for `idle` at most
                self._changed.notify()
            return merge.held(input)

    def _measure(self, merge: Merge, now: float) -> None:
        """Set `depth`, which is 0 while an input is waited for: there is nothing to take then."""
        self.depth = merge.depth if merge.ready(now) else 0
