"""Queue of batches from the manager to one partition's thread; a signal overtakes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from statehold.api.record import Message, at
from statehold.common.threads import SYSTEM, Threads


class Batch(msgspec.Struct, frozen=True):
    """Records of one stream of one partition, in its order; a seek opens a new stream (rule T6)."""

    stream: int
    #: the position before these records; the worker rejects a batch that leaves a gap
    previous: int
    messages: Sequence[Message]

    @property
    def next(self) -> int:
        return at(self.messages[-1]) + 1


class Mailbox:
    """Bounded by the manager's flow control, which reads `depth`; it drops batches of older streams only."""

    def __init__(self, threads: Threads = SYSTEM) -> None:
        self._changed = threads.condition()
        self._batches: deque[Batch] = deque()
        self._signalled = False
        self._stream = 0
        self.depth = 0

    def put(self, batch: Batch) -> None:
        """Manager thread; does not block. Drops a batch of an older stream, because the seek delivers it again."""
        with self._changed:
            if batch.stream != self._stream:
                return
            self._batches.append(batch)
            self.depth += len(batch.messages)
            self._changed.notify()

    def take(self, room: int, timeout: float) -> Batch | None:
        """Worker thread: return the next batch, cut to `room` records; None after `timeout` seconds or on a signal."""
        with self._changed:
            if not self._batches and not self._signalled:
                self._changed.wait(timeout)
            self._signalled = False
            if not self._batches:
                return None
            batch = self._batches.popleft()
            if len(batch.messages) > room:
                batch = self._cut(batch, room)
            self.depth -= len(batch.messages)
            return batch

    def signal(self) -> None:
        """Any thread: end the current or the next `take` at once."""
        with self._changed:
            self._signalled = True
            self._changed.notify()

    def open_stream(self) -> int:
        """Worker thread: drop all batches; from now on only batches of the returned stream are taken."""
        with self._changed:
            self._batches.clear()
            self.depth = 0
            self._stream += 1
            return self._stream

    def _cut(self, batch: Batch, room: int) -> Batch:
        first, rest = batch.messages[:room], batch.messages[room:]
        taken = Batch(batch.stream, batch.previous, first)
        self._batches.appendleft(Batch(batch.stream, taken.next, rest))
        return taken
