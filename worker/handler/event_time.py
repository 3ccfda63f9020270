"""Event time of a partition: before each record, fire due timers, close windows, end joins and delete expired keys.

The engine omits it for a handler without timers, windows, joins and expiry. Records and pinned ticks alone drive it,
record by record, so a replay in other batches leads to the same state (rules D1, M4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakMethod

from statehold.api.handler import Handler
from statehold.api.record import Message, Record
from statehold.api.timer import Timer
from statehold.common.visible import visible_time
from statehold.state.kinds.clock import ClockTable
from statehold.state.kinds.joins import JoinTable
from statehold.state.kinds.timers import PartitionTimers, TimerTable
from statehold.state.kinds.ttl import DedupeTable, ExpiringTable
from statehold.state.kinds.windows import ClosingTable, WindowTable
from statehold.state.partition_table import PartitionTable
from statehold.state.system_names import CLOCK, EXPIRY, TIMERS
from statehold.worker.common.activity import Handling
from statehold.worker.handler.record_failure import DueFailed
from statehold.worker.handler.time_limit import Limit


class Dated(Protocol):
    """A table with rows that are due: timers, windows, or records of a join without a partner."""

    @property
    def earliest(self) -> float: ...

    def has_due(self, until: float) -> bool: ...


class EventTime:
    """Timers and expiry of one handler; used by the partition's thread."""

    def __init__(
        self,
        handler: Handler[Any],
        clock: ClockTable,
        tables: dict[str, PartitionTable[Any, Any]],
        handling: Handling,
        on_record: Callable[[Record[Any]], None],
    ) -> None:
        self._handler, self._clock = handler, clock
        self._on_record = on_record
        #: how far records advance event time; None: to their timestamps
        self.limit: Limit | None = None
        self._expiring = [t for t in tables.values() if isinstance(t, ExpiringTable | DedupeTable | JoinTable)]
        for table in self._expiring:
            if isinstance(table, DedupeTable):
                table.follow(clock)
            elif isinstance(table, ExpiringTable):
                expiry: Any = tables[f"{EXPIRY}{table.name}"]
                table.follow(expiry, clock)
        self._timers: PartitionTimers | None = None
        self._dated: list[Dated] = []
        found = tables.get(TIMERS)
        if isinstance(found, TimerTable):
            self._timers = handler._timers = PartitionTimers(found, lambda: handling.record)
            self._dated.append(found)

    @property
    def now(self) -> int:
        """The partition's time, in milliseconds since 1970; 0 before the first record."""
        return self._clock.now

    @property
    def due(self) -> float:
        """Earliest possible due time of a timer or a window, in milliseconds since 1970; infinity without one."""
        first = math.inf
        for table in self._dated:
            if (earliest := table.earliest) < first:
                first = earliest
        return first

    def has_due(self, now: int) -> bool:
        """Return whether one is due at or before `now`; a timer or session that was deleted or postponed is not."""
        return any(table.has_due(now) for table in self._dated)

    def handle(self, record: Record[Any]) -> None:
        """Advance event time, then call the handler."""
        self.reach(record.message.timestamp()[1])
        self._on_record(record)

    def handle_limited(self, record: Record[Any]) -> None:
        """Do the same within the limit. :raises HandlingFailed: the record is beyond it and has a policy for that."""
        self.reach(self.time_of(record.message))
        self._on_record(record)

    def time_of(self, message: Message) -> int:
        """Return the time that a record of the input reaches. Raises as `handle_limited`."""
        if self.limit is not None:
            return self.limit.reached(message, self._clock.now)
        time: int = message.timestamp()[1]
        return time

    def reach(self, now: int) -> None:
        """Advance event time to `now`, never back; stop at each due timer on the way."""
        clock = self._clock
        now = max(now, clock.now)
        for dated in self._dated:
            if dated.earliest <= now:
                self._fire(now)
                break
        clock.now = now
        for table in self._expiring:
            if table.next_expiry <= now:
                table.sweep()

    def forget(self) -> None:
        """Roll back the open transaction."""
        if self._timers is not None:
            self._timers.forget()

    def _fire(self, now: int) -> None:
        while self._fire_timer(now):
            pass

    def _fire_timer(self, until: float) -> bool:
        """Fire the first timer that is due at or before `until`; return whether there was one."""
        timers = self._timers
        if timers is None or (due := timers.table.take(until)) is None:
            return False
        timer = timers.firing = timers.table[due]
        timers.table.delete(due)
        self._clock.now = max(self._clock.now, timer.due)
        try:
            self._handler.on_timer(timer)
        except Exception as error:
            raise DueFailed(f"on_timer of {timer.id!r}, due {visible_time(timer.due)}", error) from error
        timers.firing = None
        return True


class WindowTime(EventTime):
    """Event time of a handler with windows or joins. Their rows close in the order of due times, as its timers fire.

    Of equal due times, rows come before timers, in the order of their tables' names, then of their keys.
    """

    def __init__(
        self,
        handler: Handler[Any],
        clock: ClockTable,
        tables: dict[str, PartitionTable[Any, Any]],
        handling: Handling,
        on_record: Callable[[Record[Any]], None],
    ) -> None:
        super().__init__(handler, clock, tables, handling, on_record)
        #: by name, because a new order of the declarations must not change a replay
        self.windows = [table for _, table in sorted(tables.items()) if isinstance(table, WindowTable | JoinTable)]
        on_late = WeakMethod(handler.on_late)  # weak, because a cycle would keep a dropped state in memory
        for table in self.windows:
            table.follow(clock, on_late)
        self._dated += [table for table in self.windows if isinstance(table, WindowTable) or table.reported]

    def _fire(self, now: int) -> None:
        while (due := self.due) <= now:
            first = next((table for table in self.windows if table.earliest == due), None)
            if first is None:
                self._fire_timer(due)
            elif isinstance(first, JoinTable):
                self._end_join(first, due)
            else:
                self._close(first, due)

    def _close(self, table: WindowTable[Any, Any], until: float) -> None:
        if (window := table.take(until)) is None:
            return
        key, start, end = window
        value = table[window]
        table.delete(window)
        self._reach_row(table, key, end + table.grace)
        try:
            self._handler.on_window(table.attribute, key, start, end, value)
        except Exception as error:
            raise DueFailed(f"on_window of {table.name!r}, key {key!r}, from {start} to {end}", error) from error
        self._leave_row()

    def _end_join(self, table: JoinTable[Any, Any, Any], until: float) -> None:
        if (row := table.take(until)) is None:
            return
        key, side, timestamp, _ = row
        value = getattr(table[row], side)
        table.delete(row)
        self._reach_row(table, key, table.due(row))
        try:
            self._handler.on_unmatched(table.attribute, key, side, value, timestamp)
        except Exception as error:
            what = f"on_unmatched of {table.name!r}, key {key!r}, {side} side, timestamp {timestamp}"
            raise DueFailed(what, error) from error
        self._leave_row()

    def _reach_row(self, table: ClosingTable[Any, Any], key: Any, due: int) -> None:
        """Advance event time to a row; timers that its hook schedules belong to its key."""
        self._clock.now = max(self._clock.now, due)
        if self._timers is not None:
            record_key = key.encode() if isinstance(key, str) else key if isinstance(key, bytes) else None
            self._timers.firing = Timer(table.name, due, None, record_key)

    def _leave_row(self) -> None:
        if self._timers is not None:
            self._timers.firing = None


def event_time(
    handler: Handler[Any],
    tables: dict[str, PartitionTable[Any, Any]],
    handling: Handling,
    on_record: Callable[[Record[Any]], None],
) -> EventTime | None:
    """Return None for a handler without timers, windows, joins and expiry."""
    clock = tables.get(CLOCK)
    if not isinstance(clock, ClockTable):
        return None
    kind = WindowTime if any(isinstance(table, ClosingTable) for table in tables.values()) else EventTime
    return kind(handler, clock, tables, handling, on_record)
