"""Decides when attempts of a `Call` may begin: its rate in this process, and an outage of the other system.

After a number of failures without a success between them the other system counts as down. Then one attempt at a time
probes it, after pauses that grow, and the other calls wait without losing attempts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from statehold.messages.call_outcome import CallJob

#: seconds before the first probe
_FIRST: Final = 1.0


class Waiting(Protocol):
    """Where a call comes from."""

    def offer(self, job: CallJob) -> bool:
        """Let an attempt begin now; False: the call is not pending any more."""
        ...


class Gate:
    """The attempts of one `Call` in this process; used by the event loop's thread."""

    def __init__(
        self,
        later: Callable[..., Any],
        clock: Callable[[], float],
        rate: float,
        patience: int,
        longest: float,
    ) -> None:
        """`later(seconds, function, *args)` calls a function later. `rate`: attempts per second; 0: no limit.

        `patience`: failures in a row that are an outage; 0: none is. `longest`: seconds between two probes.
        """
        self._later, self._clock = later, clock
        self._apart, self._patience, self._longest = 1 / rate if rate else 0.0, patience, longest
        #: when the next attempt may begin, by the rate
        self._next = 0.0
        #: calls whose turn has come
        self._admitted: set[str] = set()
        self._failures, self._pause = 0, _FIRST
        #: the other system is down; any thread may read it
        self.down = False
        #: the call that probes it; and whether the next one may
        self._probing, self._may_probe = "", False
        self._held: deque[tuple[Waiting, CallJob]] = deque()

    def admit(self, source: Waiting, job: CallJob) -> bool:
        """Return whether an attempt may begin; otherwise `source` gets the call back when it may."""
        if self.down:
            if not self._may_probe:
                self._held.append((source, job))
                return False
            self._may_probe, self._probing = False, job.id
        if not self._apart:
            return True
        if job.id in self._admitted:
            self._admitted.discard(job.id)
            return True
        now = self._clock()
        begins, self._next = max(now, self._next), max(now, self._next) + self._apart
        if begins <= now:
            return True
        self._admitted.add(job.id)
        if self._probing == job.id:
            self._probing, self._may_probe = "", True
        self._later(begins - now, self._turn, source, job)
        return False

    def ended(self, job: CallJob, *, answered: bool | None) -> bool:
        """Note the end of an attempt; None: it was cancelled. Return whether an outage has begun or ended."""
        probed = job.id == self._probing
        if probed:
            self._probing = ""
        if answered is None:
            if probed:
                self._probe()
            return False
        if answered:
            self._failures = 0
            return self.down and self._recover()
        self._failures += 1
        if self.down:
            if probed:
                self._pause = min(self._pause * 2, max(self._longest, _FIRST))
                self._later(self._pause, self._probe)
            return False
        self.down = 0 < self._patience <= self._failures
        if self.down:
            self._pause = _FIRST
            self._later(self._pause, self._probe)
        return self.down

    def _recover(self) -> bool:
        self.down, self._may_probe, self._probing = False, False, ""
        held, self._held = self._held, deque()
        for source, job in held:
            source.offer(job)
        return True

    def _probe(self) -> None:
        if not self.down or self._probing:
            return
        self._may_probe = True
        while self._held:
            source, job = self._held.popleft()
            if source.offer(job):
                # It may be dropped before its attempt begins: then the next one probes.
                self._later(max(0.0, self._next - self._clock()) + _FIRST, self._probe_if_none)
                return

    def _probe_if_none(self) -> None:
        if self._may_probe:
            self._probe()

    def _turn(self, source: Waiting, job: CallJob) -> None:
        if not source.offer(job):
            self._admitted.discard(job.id)
