"""What the manager wants of a partition, set on its thread and read on the worker's."""

from __future__ import annotations

import threading

from statehold.worker.common.lifecycle import Event


class Signals:
    """A loss overtakes a revocation; neither is ever taken back."""

    def __init__(self) -> None:
        self._lost = threading.Event()
        self._revoked = threading.Event()
        self._retry = threading.Event()
        #: what the manager saw that ends the work on this partition
        self.failure: BaseException | None = None
        #: any of these: what back-offs sleep on
        self.any = threading.Event()
        #: monotonic time until which a drain may take
        self.deadline = 0.0
        #: the process stops, so a full may be worth its time
        self.final = False

    def lose(self) -> None:
        self._lost.set()
        self.any.set()

    def revoke(self, deadline: float, *, final: bool) -> None:
        self.deadline, self.final = deadline, final
        self._revoked.set()
        self.any.set()

    def fail(self, cause: BaseException) -> None:
        self.failure = cause
        self.any.set()

    def raise_failure(self) -> None:
        """Raise what `fail` was given, once."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            self._rearm()
            raise failure

    def forget_failure(self) -> None:
        """The partition has failed: what the manager saw before that is told, and must not end the retry."""
        self.failure = None
        self._rearm()

    def retry(self) -> None:
        self._retry.set()
        self.any.set()

    def pause(self, seconds: float) -> bool:
        """Sleep; True when a signal ended it that is to be acted on: for a drain, the loss of the partition."""
        return (self._lost if self._revoked.is_set() else self.any).wait(seconds)

    def leaving(self) -> bool:
        return self._lost.is_set() or self._revoked.is_set()

    def lost(self) -> bool:
        return self._lost.is_set()

    def event(self) -> Event | None:
        """The event to act on; a retry is consumed by asking."""
        if self._lost.is_set():
            return Event.LOST
        if self._revoked.is_set():
            return Event.REVOKED
        if self._retry.is_set():
            self._retry.clear()
            self._rearm()
            return Event.RETRY
        return None

    def _rearm(self) -> None:
        """Clear `any`, unless something is set: first the clearing, so that no signal between is lost."""
        self.any.clear()
        if self.leaving() or self._retry.is_set() or self.failure is not None:
            self.any.set()
