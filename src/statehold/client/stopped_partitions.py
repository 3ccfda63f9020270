"""Early word of partitions that handle nothing: a request does not wait its whole time for a failed or paused one.

One thread looks at what waits for long, and asks the owner's ops server. It ends the future of a request, so no event
loop is blocked. If no owner can be asked, requests wait as they would without this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from statehold.client.asking import RequestInProgress
from statehold.client.owner_reads import PartitionState
from statehold.common.names import Names
from statehold.errors import PartitionStopped
from statehold.telemetry.log_events import Log

#: seconds between two turns, and for which a request waits before its partition is looked at
_TURN: Final = 0.5
_PATIENCE: Final = 1.0
#: seconds between two looks at a partition: one that continues, and one that had stopped
_AGAIN, _AGAIN_STOPPED = 5.0, 1.0
#: seconds of a look at most, and for the thread's end
_LONGEST: Final = 2.0


class StoppedPartitions:
    """`begin` and `close` may be called by any thread; `turn` is the thread's."""

    def __init__(
        self,
        names: Names,
        waiting: Callable[[], Iterable[RequestInProgress]],
        look: Callable[[int, float], PartitionState | None],
    ) -> None:
        """`look` asks the owner of a partition, until a monotonic time."""
        self._names, self._waiting, self._look = names, waiting, look
        self._log = Log(service=names.group)
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        #: when each partition may be looked at again
        self._next: dict[int, float] = {}

    def begin(self) -> None:
        """Start the thread, once."""
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._ending.is_set():
                self._thread = threading.Thread(target=self._run, name="client-owners", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread; wait for a look in progress."""
        self._ending.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(_LONGEST)

    def _run(self) -> None:
        while not self._ending.wait(_TURN):
            try:
                self.turn(time.monotonic())
            except Exception as error:  # noqa: BLE001  because requests wait on, and a later look may succeed
                self._log.error("thread_died", thread="client-owners", cause=repr(error), exc_info=True)

    def turn(self, now: float) -> None:
        """Look at the partitions of requests that wait for long, and end those whose partition has stopped."""
        late: dict[int, list[RequestInProgress]] = {}
        for request in self._waiting():
            if now - request.began >= _PATIENCE and request.where["offset"] >= 0:
                late.setdefault(request.where["partition"], []).append(request)
        for partition, requests in late.items():
            if now < self._next.get(partition, now) or self._ending.is_set():
                continue
            self._next[partition] = now + _AGAIN
            state = self._look(partition, time.monotonic() + _LONGEST)
            if state is None or not state.stopped:
                continue
            self._next[partition] = now + _AGAIN_STOPPED
            for request in requests:
                if state.position is None or state.position <= request.where["offset"]:  # its reply is not on the way
                    request.end(stopped(self._names, request.where, state))


def stopped(names: Names, where: dict[str, Any], state: PartitionState) -> PartitionStopped:
    """Return the error of a request whose partition handles nothing. `where`: its id and coordinates."""
    why = state.why
    error = PartitionStopped(
        f"the partition {why}. The request is written, and takes effect when the partition continues. Next: "
        f"`{state.command(names)}`, once the cause is fixed; then ask again with the same value, key and "
        f"id={where['id']!r}, which takes effect once",
        **where,
    )
    error.error, error.cause = (state.error or "", state.short_cause) if state.failed else ("", why)
    error.since = state.since if state.failed else None
    return error
