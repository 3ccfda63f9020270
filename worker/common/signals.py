"""Requests of the manager to a partition, set on its thread and read on the worker's."""

from __future__ import annotations

from collections.abc import Callable

from statehold.common.threads import SYSTEM, Threads
from statehold.worker.common.lifecycle import Event


class Signals:
    """A loss overtakes a revocation; neither is ever withdrawn."""

    def __init__(self, threads: Threads = SYSTEM) -> None:
        self._lost = threads.event()
        self._revoked = threads.event()
        self._retry = threads.event()
        #: an error that the manager saw and that ends the work on this partition
        self.failure: BaseException | None = None
        #: any of these is set; back-offs wait for it
        self.any = threads.event()
        #: monotonic time at which a drain must end
        self.deadline = 0.0
        #: the process stops, so a full snapshot may be worth its time
        self.final = False
        #: ends the thread's wait for records
        self.wake: Callable[[], None] = lambda: None

    def lose(self) -> None:
        self._lost.set()
        self._notify()

    def revoke(self, deadline: float, *, final: bool) -> None:
        self.deadline, self.final = deadline, final
        self._revoked.set()
        self._notify()

    def fail(self, cause: BaseException) -> None:
        self.failure = cause
        self._notify()

    def raise_failure(self) -> None:
        """Raise the error that `fail` received, once."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            self._rearm()
            raise failure

    def forget_failure(self) -> None:
        """Drop an error from before the partition's failure, because it must not end the retry."""
        self.failure = None
        self._rearm()

    def retry(self) -> None:
        self._retry.set()
        self._notify()

    def pause(self, seconds: float) -> bool:
        """Sleep; True if a signal ended it that the worker must obey: for a drain, the loss of the partition."""
        return (self._lost if self._revoked.is_set() else self.any).wait(seconds)

    def leaving(self) -> bool:
        return self._lost.is_set() or self._revoked.is_set()

    def lost(self) -> bool:
        return self._lost.is_set()

    def event(self) -> Event | None:
        """Return the event to act on; this consumes a retry."""
        if self._lost.is_set():
            return Event.LOST
        if self._revoked.is_set():
            return Event.REVOKED
        if self._retry.is_set():
            self._retry.clear()
            self._rearm()
            return Event.RETRY
        return None

    def _notify(self) -> None:
        self.any.set()
        self.wake()

    def _rearm(self) -> None:
        """Clear `any`, then set it again if a signal is set; in this order no signal is lost."""
        self.any.clear()
        if self.leaving() or self._retry.is_set() or self.failure is not None:
            self.any.set()
