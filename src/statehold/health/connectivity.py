"""This process's contact with Kafka: who of it gets answers, since when not, and what is done about a long outage.

The adapters report: a partition whose calls fail for want of an answer, one whose call has worked, and whether the
consumer has its group's coordinator. An **outage** is when the service as a whole cannot go on: the group is out of
reach, or every partition here is. A single partition that waits (its leader is gone) is told of by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from statehold.errors import OutageTooLong
from statehold.health.call_watchdog import Unwatched, Watching
from statehold.ports import Clock
from statehold.telemetry.log_events import Log

#: an outage is told of after so many seconds (a broker's restart, a rebalance are none), then this often
_TELL_AFTER: Final = 10.0
_TELL_EVERY: Final = 60.0
_LOOK_EVERY: Final = 1.0
#: what the group is called among the partitions
GROUP: Final = -1


class Trouble(NamedTuple):
    """Who gets no answers, since when, and what it heard last."""

    since: float
    cause: str


class NoContact:
    """For tools, and wherever nobody asks: nothing is watched or kept."""

    def call(self, what: str, limit: float, *, partition: int = -1) -> AbstractContextManager[object]:
        return Unwatched().call(what, limit, partition=partition)

    def broken(self, partition: int, cause: object) -> None: ...

    def works(self, partition: int) -> None: ...


class Contact(NoContact):
    """Any thread. `leave` is called once, when an outage has lasted for `limit` seconds (None: never)."""

    def __init__(
        self,
        watch: Watching,
        clock: Clock,
        log: Log,
        limit: float | None = None,
        leave: Callable[[OutageTooLong], object] = lambda _: None,
    ) -> None:
        self._watch, self._clock, self._log, self._limit, self._leave = watch, clock, log, limit, leave
        self._lock = threading.Lock()
        self._here: set[int] = set()
        self._broken: dict[int, Trouble] = {}
        #: since when there is an outage, and when it was told of last
        self._since: float | None = None
        self._told: float | None = None
        self._left = False
        self._ending = threading.Event()

    # The adapters and the wiring

    def call(self, what: str, limit: float, *, partition: int = -1) -> AbstractContextManager[object]:
        return self._watch.call(what, limit, partition=partition)

    def joins(self, partition: int) -> None:
        """A partition is assigned to this process."""
        with self._lock:
            self._here.add(partition)

    def leaves(self, partition: int) -> None:
        with self._lock:
            self._here.discard(partition)
            self._broken.pop(partition, None)

    def broken(self, partition: int, cause: object) -> None:
        """A call for it got no answer, or one that tells to try again. GROUP: the coordinator is not there."""
        with self._lock:
            since = self._broken[partition].since if partition in self._broken else self._clock()
            self._broken[partition] = Trouble(since, str(cause))

    def works(self, partition: int) -> None:
        """One of its calls has worked."""
        if partition in self._broken:
            with self._lock:
                self._broken.pop(partition, None)

    # Looking

    def view(self) -> dict[str, Any] | None:
        """For `status()`: how long the outage lasts, and why; None while there is none."""
        with self._lock:
            trouble = self._outage()
        if trouble is None:
            return None
        return {"seconds": round(self._clock() - trouble.since, 1), "cause": trouble.cause}

    def of(self, partition: int) -> dict[str, Any] | None:
        """For `status()`: how long one partition has had no answers, and what it heard last."""
        with self._lock:
            trouble = self._broken.get(partition)
        if trouble is None:
            return None
        return {"seconds": round(self._clock() - trouble.since, 1), "cause": trouble.cause}

    def start(self) -> None:
        threading.Thread(target=self._run, name="contact", daemon=True).start()

    def close(self) -> None:
        self._ending.set()

    def look(self) -> None:
        """Tell of an outage when it has lasted, once a minute, and when it is over; leave when it is too long."""
        now = self._clock()
        with self._lock:
            trouble, here = self._outage(), sorted(self._here)
        if trouble is None:
            if self._told is not None and self._since is not None:
                self._log.info("outage_over", seconds=round(now - self._since, 1), partitions=here)
            self._since = self._told = None
            return
        self._since = trouble.since if self._since is None else self._since
        lasted = now - self._since
        if lasted >= _TELL_AFTER and (self._told is None or now - self._told >= _TELL_EVERY):
            self._told = now
            self._log.warning("outage", seconds=round(lasted, 1), partitions=here, cause=trouble.cause)
        if self._limit is not None and lasted >= self._limit and not self._left:
            self._left = True
            self._leave(
                OutageTooLong(
                    f"Kafka has been out of reach for {lasted:.0f} s (kafka.outage = {self._limit:g}): {trouble.cause}"
                )
            )

    def _outage(self) -> Trouble | None:
        if GROUP in self._broken:
            return self._broken[GROUP]
        cut_off = [self._broken[partition] for partition in self._here if partition in self._broken]
        if not cut_off or len(cut_off) < len(self._here):
            return None
        return max(cut_off)  # the service as a whole goes on until the last one of them is cut off

    def _run(self) -> None:
        while not self._ending.wait(_LOOK_EVERY):
            self.look()
