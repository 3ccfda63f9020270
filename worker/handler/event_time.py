"""What a partition does by its own time: before a record is handled, timers that are due fire and what expired goes.

The engine has none of this for a handler that uses nothing of it. Everything here follows from the records and the
pinned ticks alone, record by record, so a replay in other batches leads to the same state (rules D1, M4).
"""

from __future__ import annotations

import math
from typing import Any

from statehold.handler import Handler
from statehold.record import Record
from statehold.table import Table
from statehold.tables.clock import ClockTable
from statehold.tables.system import CLOCK, EXPIRY, TIMERS
from statehold.tables.timers import Timers, TimerTable
from statehold.tables.ttl import Dedupe, expiring
from statehold.worker.common.activity import Handling


class Moments:
    """One handler's; used by the partition's thread."""

    def __init__(
        self, handler: Handler[Any], clock: ClockTable, tables: dict[str, Table[Any, Any]], handling: Handling
    ) -> None:
        self._handler, self._clock = handler, clock
        self._on_record = handler.on_record
        self._expiring = list(expiring(tables))
        for table in self._expiring:
            if isinstance(table, Dedupe):
                table.follow(clock)
            else:
                expiry: Any = tables[f"{EXPIRY}{table.name}"]
                table.follow(expiry, clock)
        self._timers: Timers | None = None
        found = tables.get(TIMERS)
        if isinstance(found, TimerTable):
            self._timers = handler._timers = Timers(found, lambda: handling.record)

    @property
    def due(self) -> float:
        """No timer is due before this, in milliseconds since 1970; infinity where there is none."""
        return self._timers.table.earliest if self._timers is not None else math.inf

    def handle(self, record: Record[Any]) -> None:
        """In the place of `on_record`."""
        self.reach(record.timestamp)
        self._on_record(record)

    def reach(self, now: int) -> None:
        """Time passes, up to `now` or not at all: it stops at each timer on its way."""
        clock = self._clock
        now = max(now, clock.now)
        if self._timers is not None and self._timers.table.earliest <= now:
            self._fire(self._timers, now)
        clock.now = now
        for table in self._expiring:
            if table.earliest <= now:
                table.sweep()

    def forget(self) -> None:
        """The open transaction is undone."""
        if self._timers is not None:
            self._timers.forget()

    def _fire(self, timers: Timers, now: int) -> None:
        table = timers.table
        while (due := table.take(now)) is not None:
            timer = timers.firing = table[due]
            table.delete(due)
            self._clock.now = max(self._clock.now, timer.due)
            try:
                self._handler.on_timer(timer)
            except Exception as error:
                error.add_note(f"in on_timer of {timer.id!r}, due {timer.at.isoformat()}")
                raise
            timers.firing = None


def moments(handler: Handler[Any], tables: dict[str, Table[Any, Any]], handling: Handling) -> Moments | None:
    """None for a handler that does nothing by its partition's time."""
    clock = tables.get(CLOCK)
    return Moments(handler, clock, tables, handling) if isinstance(clock, ClockTable) else None
