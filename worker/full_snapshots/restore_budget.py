"""`snapshot.restore_budget`: ask for a full snapshot before a restore would take too long."""

from __future__ import annotations

import math

from statehold.snapshot.restore.estimate import full_wanted
from statehold.telemetry.log_events import Event, Log
from statehold.worker.full_snapshots.deltas import RestoreCost

#: seconds between two looks for a requested compaction
_LOOK_EVERY = 10.0
#: seconds between two warnings
_WARN_EVERY = 600.0


class RestoreBudget:
    """Asks for a full snapshot, or for a compaction if snapshot.periodic_full is off."""

    def __init__(self, seconds: float, cost: RestoreCost, log: Log, *, periodic_full: bool) -> None:
        self._seconds, self._periodic_full, self._cost, self._log = seconds, periodic_full, cost, log
        self._warned = self._looked = -math.inf
        #: a compaction is requested, and its snapshot was not found yet
        self._wanting = False

    def asks(self, now: float) -> bool:
        """Return whether a full snapshot by this worker is needed to stay within the budget."""
        budget, cost = self._seconds, self._cost
        self._wanting = False
        if not full_wanted(budget, cost.with_a_full(), cost.seconds):
            if cost.seconds > budget:
                self._warn(
                    now, "restore_over_budget", "a full snapshot does not help: add partitions or raise the budget"
                )
            return False
        if not self._periodic_full:
            self._wanting = True
            self._warn(now, "compaction_wanted", "snapshot.periodic_full is off: run `statehold compact`")
        return self._periodic_full

    def looks(self, now: float) -> bool:
        """Return whether to look for the full snapshot of the requested compaction."""
        if not self._wanting or now - self._looked < _LOOK_EVERY:
            return False
        self._looked = now
        return True

    def _warn(self, now: float, event: Event, cause: str) -> None:
        if now - self._warned >= _WARN_EVERY:
            self._warned = now
            seconds = round(self._cost.seconds, 3)
            self._log.warning(event, restore_seconds=seconds, budget=self._seconds, cause=cause)
