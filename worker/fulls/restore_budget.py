"""`snapshot.restore_budget`: ask for a full snapshot before a restore would take too long."""

from __future__ import annotations

import math

from statehold.snapshot.restore.estimate import full_wanted
from statehold.telemetry.log_events import Event, Log
from statehold.worker.fulls.deltas import RestoreCost

#: seconds between two looks for a compaction that was asked for
_LOOK_EVERY = 10.0
#: seconds between two warnings
_TELL_EVERY = 600.0


class RestoreBudget:
    """Asks for a full snapshot, or for a compaction where full snapshots are left to that."""

    def __init__(self, seconds: float, cost: RestoreCost, log: Log, *, periodic_full: bool) -> None:
        self._seconds, self._fulls, self._cost, self._log = seconds, periodic_full, cost, log
        self._told = self._looked = -math.inf
        #: a compaction is wanted, and none was noticed yet
        self._wanting = False

    def asks(self, now: float) -> bool:
        """The budget would soon be exceeded, and a full by this worker helps."""
        budget, cost = self._seconds, self._cost
        self._wanting = False
        if not full_wanted(budget, cost.with_a_full(), cost.seconds):
            if cost.seconds > budget:
                self._tell(now, "restore_over_budget", "a full would not help: more partitions, or more budget")
            return False
        if not self._fulls:
            self._wanting = True
            self._tell(now, "compaction_wanted", "snapshot.periodic_full is off: run `statehold compact`")
        return self._fulls

    def looks(self, now: float) -> bool:
        """Whether to look for the full of the compaction that was asked for."""
        if not self._wanting or now - self._looked < _LOOK_EVERY:
            return False
        self._looked = now
        return True

    def _tell(self, now: float, event: Event, cause: str) -> None:
        if now - self._told >= _TELL_EVERY:
            self._told = now
            seconds = round(self._cost.seconds, 3)
            self._log.warning(event, restore_seconds=seconds, budget=self._seconds, cause=cause)
