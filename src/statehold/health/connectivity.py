"""Tracks whether Kafka answers this process, logs outages, and stops the service after a long one.

The Kafka adapters report calls without an answer, calls that succeeded, and whether the consumer reaches the group's
coordinator. An **outage** is a state in which the whole service cannot continue: the coordinator or every partition is
unreachable. A single partition without an answer, for example without a leader, is reported separately.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

from statehold.errors import OutageTooLong
from statehold.health.call_watchdog import CallWatchdog
from statehold.ports import Clock
from statehold.telemetry.log_events import Log

#: Seconds until an outage is logged, because a broker's restart or a rebalance is shorter; then seconds between logs.
_REPORT_AFTER: Final = 10.0
_REPORT_EVERY: Final = 60.0
_LOOK_EVERY: Final = 1.0
#: Number that stands for the group's coordinator among the partitions.
GROUP: Final = -1


class Unanswered(NamedTuple):
    """Monotonic time since which Kafka does not answer, and the last error."""

    since: float
    cause: str


class NoContact:
    """Tracks and watches nothing, for tools, whose user sees that a call hangs."""

    def call(self, what: str, limit: float, *, partition: int = -1) -> AbstractContextManager[object]:
        return nullcontext()

    def broken(self, partition: int, cause: object, since: float | None = None) -> None: ...

    def works(self, partition: int) -> None: ...


class Contact(NoContact):
    """Tracks answers by partition. Any thread. Calls `leave` once after an outage of `limit` seconds (None: never)."""

    def __init__(
        self,
        watch: CallWatchdog | NoContact,
        clock: Clock,
        log: Log,
        limit: float | None = None,
        leave: Callable[[OutageTooLong], object] = lambda _: None,
    ) -> None:
        self._watch, self._clock, self._log, self._limit, self._leave = watch, clock, log, limit, leave
        self._lock = threading.Lock()
        self._here: set[int] = set()
        self._broken: dict[int, Unanswered] = {}
        #: Start of the outage, and time of its last log event.
        self._since: float | None = None
        self._reported: float | None = None
        self._left = False
        self._ending = threading.Event()

    # The adapters and the wiring

    def call(self, what: str, limit: float, *, partition: int = -1) -> AbstractContextManager[object]:
        return self._watch.call(what, limit, partition=partition)

    def joins(self, partition: int) -> None:
        """Add a partition that is assigned to this process."""
        with self._lock:
            self._here.add(partition)

    def leaves(self, partition: int) -> None:
        with self._lock:
            self._here.discard(partition)
            self._broken.pop(partition, None)

    def broken(self, partition: int, cause: object, since: float | None = None) -> None:
        """Record a call without an answer, or with a retriable error. GROUP: the coordinator is unreachable.

        `since`: monotonic time of the last answer, if it is earlier than this call.
        """
        with self._lock:
            if partition in self._broken:
                since = self._broken[partition].since
            self._broken[partition] = Unanswered(self._clock() if since is None else since, str(cause))

    def works(self, partition: int) -> None:
        """Record a successful call."""
        if partition in self._broken:
            with self._lock:
                self._broken.pop(partition, None)

    # Status and log

    def view(self) -> dict[str, Any] | None:
        """Return duration and cause of the outage, for `status()`; None without an outage."""
        with self._lock:
            trouble = self._outage()
        return self._described(trouble)

    def of(self, partition: int) -> dict[str, Any] | None:
        """Return how long a partition has had no answer, and the last error, for `status()`."""
        with self._lock:
            trouble = self._broken.get(partition)
        return self._described(trouble)

    def _described(self, trouble: Unanswered | None) -> dict[str, Any] | None:
        if trouble is None:
            return None
        return {"seconds": round(self._clock() - trouble.since, 1), "cause": trouble.cause}

    def start(self) -> None:
        threading.Thread(target=self._run, name="contact", daemon=True).start()

    def close(self) -> None:
        self._ending.set()

    def look(self) -> None:
        """Log a lasting outage once a minute, and its end. Stop the service if the outage is too long."""
        now = self._clock()
        with self._lock:
            trouble, here = self._outage(), sorted(self._here)
        if trouble is None:
            if self._reported is not None and self._since is not None:
                self._log.info("outage_over", seconds=round(now - self._since, 1), partitions=here)
            self._since = self._reported = None
            return
        self._since = trouble.since if self._since is None else self._since
        lasted = now - self._since
        if lasted >= _REPORT_AFTER and (self._reported is None or now - self._reported >= _REPORT_EVERY):
            self._reported = now
            self._log.warning("outage", seconds=round(lasted, 1), partitions=here, cause=trouble.cause)
        if self._limit is not None and lasted >= self._limit and not self._left:
            self._left = True
            self._leave(
                OutageTooLong(
                    f"Kafka has not answered for {lasted:.0f} s (kafka.outage = {self._limit:g}): {trouble.cause}"
                )
            )

    def _outage(self) -> Unanswered | None:
        if GROUP in self._broken:
            return self._broken[GROUP]
        cut_off = [self._broken[partition] for partition in self._here if partition in self._broken]
        if not cut_off or len(cut_off) < len(self._here):
            return None
        return max(cut_off)  # the outage starts when the last partition loses its connection

    def _run(self) -> None:
        while not self._ending.wait(_LOOK_EVERY):
            self.look()
