"""Event time of a partition: before each record, fire due timers and delete expired keys.

The engine omits it for a handler without timers and expiry. Records and pinned ticks alone drive it, record by record,
so a replay in other batches leads to the same state (rules D1, M4).
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


class EventTime:
    """Timers and expiry of one handler; used by the partition's thread."""

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
        """Due time of the next timer, in milliseconds since 1970; infinity without a timer."""
        return self._timers.table.earliest if self._timers is not None else math.inf

    def handle(self, record: Record[Any]) -> None:
        """Advance event time, then call `on_record`."""
        self.reach(record.timestamp)
        self._on_record(record)

    def reach(self, now: int) -> None:
        """Advance event time to `now`, never back; stop at each due timer on the way."""
        clock = self._clock
        now = max(now, clock.now)
        if self._timers is not None and self._timers.table.earliest <= now:
            self._fire(self._timers, now)
        clock.now = now
        for table in self._expiring:
            if table.earliest <= now:
                table.sweep()

    def forget(self) -> None:
        """Roll back the open transaction."""
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


def event_time(handler: Handler[Any], tables: dict[str, Table[Any, Any]], handling: Handling) -> EventTime | None:
    """Return None for a handler without timers and expiry."""
    clock = tables.get(CLOCK)
    return EventTime(handler, clock, tables, handling) if isinstance(clock, ClockTable) else None
