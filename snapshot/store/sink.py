"""Writes the chunks of a full snapshot into a store, in segments, on its own thread; the manifest goes to Kafka."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from statehold.common.threads import SYSTEM, Threads
from statehold.ports import Clock, FullSink
from statehold.snapshot.format import frame
from statehold.snapshot.format.blocks import block
from statehold.snapshot.store.base import Store, StoreTrouble, segment_key

#: bytes of one segment; a few segments are read ahead, and are in memory while the store is slow
SEGMENT_BYTES: Final = 8_000_000
_WAITING: Final = 2
#: how often the sink checks whether to stop, and after how many seconds a store that accepts nothing is abandoned
_GLANCE: Final = 0.05
PATIENCE: Final = 60.0

#: key, content and number of chunks of a segment
_Job = tuple[str, bytes, int]


class StoreSink:
    """`ports.FullSink`, which wraps the sink for Kafka. `folder` is the partition's, `root` the store's address.

    `ends` returns true once the partition cannot wait any longer: the sink then abandons the full snapshot.
    """

    def __init__(
        self,
        store: Store,
        root: str,
        folder: str,
        kafka: FullSink,
        segment: int = SEGMENT_BYTES,
        ends: Callable[[], bool] = lambda: False,
        patience: float = PATIENCE,
        *,
        threads: Threads = SYSTEM,
        clock: Clock = time.monotonic,
    ) -> None:
        self._ends, self._patience = ends, patience
        self._store, self._root, self._folder, self._kafka = store, root, folder, kafka
        self._segment_bytes, self._clock = segment, clock
        self._full, self._segments = "", 0
        self._put = store.put
        self._blocks: list[bytes] = []
        self._size = 0
        #: guards the fields below; a notification concerns one thread, because the other one made the change
        self._changed = threads.condition()
        self._jobs: deque[_Job] = deque()
        self._chunks = self._sent = 0
        self._failure: str | None = None
        self._closed = False
        self._thread = threads.thread(self._work, f"store-{folder}")
        self._thread.start()

    def open(self, full: str, segments: int = 0) -> str:
        self._full, self._segments = full, segments
        if segments:
            # A writer of the same full snapshot that was killed may not have ended yet.
            self._put = self._store.put_new
        return f"{self._root.rstrip('/')}/{self._folder}/{full}"

    @property
    def crowded(self) -> bool:
        return len(self._jobs) >= _WAITING

    def send(self, payload: bytes) -> None:
        if frame.kind_of(payload) == b"F":
            self._kafka.send(payload)
            return
        self._blocks.append(block(payload))
        self._size, self._sent = self._size + len(payload), self._sent + 1
        if self._size >= self._segment_bytes:
            self._ship()

    def seal(self) -> int:
        if self._blocks:
            self._ship()
        return self._segments

    def acknowledged(self, wait: float = 0.0) -> list[int]:
        with self._changed:
            self._await(lambda: self._failure is not None or self._chunks == self._sent, wait)
            if self._failure is not None:
                raise StoreTrouble(f"a chunk was not written: {self._failure}")
            done = self._chunks
        return [-1] * done + self._kafka.acknowledged(wait if done == self._sent else 0.0)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify()
        self._kafka.close()

    def _ship(self) -> None:
        key = f"{self._folder}/{segment_key(self._full, self._segments)}"
        self._offer((key, b"".join(self._blocks), len(self._blocks)))
        self._segments += 1
        self._blocks, self._size = [], 0

    def _offer(self, job: _Job) -> None:
        """Wait for room, with a limit, because a store that hangs must not block the partition."""
        until = self._clock() + self._patience
        with self._changed:
            while not self._await(lambda: not self.crowded, _GLANCE):
                if self._failure is not None:
                    raise StoreTrouble(f"a chunk was not written: {self._failure}")
                if self._ends():
                    raise StoreTrouble("the store accepts nothing, and the partition leaves")
                if self._clock() >= until:
                    raise StoreTrouble(f"the store has accepted nothing for {self._patience:.0f} s")
            self._jobs.append(job)
            self._changed.notify()

    def _await(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait at most this long, with `_changed` held; return whether `done()` holds."""
        until = self._clock() + seconds
        while not done() and (left := until - self._clock()) > 0:
            self._changed.wait(left)
        return done()

    # The thread

    def _work(self) -> None:
        while (job := self._next()) is not None:
            key, data, chunks = job
            failure = None
            if self._failure is None:
                try:
                    self._put(key, data)
                except Exception as error:  # noqa: BLE001 - `acknowledged` raises it
                    failure = str(error)
            with self._changed:
                self._failure = self._failure or failure
                self._chunks += chunks
                self._changed.notify()

    def _next(self) -> _Job | None:
        """Wait for the next segment; None once the sink is closed."""
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            job = self._jobs.popleft()
            self._changed.notify()
            return job
