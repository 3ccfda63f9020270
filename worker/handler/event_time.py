"""Event time of a partition: before each record, fire due timers, close windows, end joins and delete expired keys.

The engine omits it for a handler without timers, windows, joins and expiry. Records and pinned ticks alone drive it,
record by record, so a replay in other batches leads to the same state (rules D1, M4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol
from weakref import WeakMethod

from statehold.api.handler import Handler
from statehold.api.record import Message, Record, at, plain
from statehold.api.timer import Timer
from statehold.bound.inputs import RecordKeys
from statehold.common.visible import visible_time
from statehold.errors import UpgradeUnfinished
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord
from statehold.state.kinds.clock import ClockTable, Horizon
from statehold.state.kinds.due_index import DueTable
from statehold.state.kinds.joins import JoinTable
from statehold.state.kinds.timers import PartitionTimers, TimerTable
from statehold.state.kinds.ttl import DedupeTable, ExpiringTable
from statehold.state.kinds.windows import ClosingTable, WindowTable
from statehold.state.partition_table import PartitionTable
from statehold.state.system_names import CLOCK, EXPIRY, TIMERS
from statehold.worker.common.activity import Handling
from statehold.worker.handler.record_failure import DueFailed
from statehold.worker.handler.time_limit import Limit
from statehold.worker.handler.time_slices import UNCUT, TimeSlices

#: a method of the handler that takes a record
Call = Callable[[Record[Any]], None]


class Dated(Protocol):
    """A table with rows that are due: timers, windows, or records of a join without a partner."""

    @property
    def earliest(self) -> float: ...

    @property
    def known(self) -> float: ...

    def has_due(self, until: float) -> bool: ...


class EventTime:
    """Timers and expiry of one handler; used by the partition's thread."""

    def __init__(
        self,
        handler: Handler[Any],
        clock: ClockTable,
        tables: dict[str, PartitionTable[Any, Any]],
        handling: Handling,
    ) -> None:
        self._handler, self._clock, self._handling = handler, clock, handling
        #: how far records advance event time; None: to their timestamps
        self.limit: Limit | None = None
        self.slices = TimeSlices(handling)
        #: before it, a record meets nothing that is due
        self._horizon = Horizon()
        for table in tables.values():
            if isinstance(table, DueTable | JoinTable):
                table.horizon = self._horizon
        self._expiring = [t for t in tables.values() if isinstance(t, ExpiringTable | DedupeTable)]
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
            self.slices.numberings.append(self._timers.numbering)

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

    @property
    def known(self) -> float:
        """`due` for other threads: it reads no file."""
        return min((table.known for table in self._dated), default=math.inf)

    def has_due(self, now: int) -> bool:
        """Return whether one is due at or before `now`; a timer or session that was deleted or postponed is not."""
        return any(table.has_due(now) for table in self._dated)

    def handle(
        self,
        records: Sequence[Record[Any]],
        calls: Iterable[Callable[[Record[Any]], None]],
        messages: Sequence[Message],
    ) -> None:
        """Hand each record to its call, what is due before it first; the records are those of the messages.

        It may stop on the way to a record: `slices.inside`.
        """
        clock, handling, horizon, slices = self._clock, self._handling, self._horizon, self.slices
        horizon.at = self._next
        slices.goes_on = records if slices.left < math.inf else UNCUT
        try:
            # `Handling.cut` shortens the records.
            for record, call, now in zip(records, calls, self._times(messages), strict=False):
                handling.record = record
                if now < horizon.at:
                    clock.now = now
                elif not self.reach(now):
                    return
                call(record)
        finally:
            slices.goes_on = UNCUT

    def time_of(self, message: Message) -> int:
        """Return the time that a record of the input reaches.

        :raises RecordFailed: it is beyond the limit, and the handler has a policy for that.
        """
        if self.limit is not None:
            until = self.slices.until
            # A clock decides once, and the rows before this record were handed over for it.
            if until is not None and self.slices.at == at(message):
                return until
            return self.limit.reached(message, self._clock.now)
        time: int = message.timestamp()[1]
        return time

    def _times(self, messages: Sequence[Message]) -> Iterator[int]:
        """Yield the partition's time at each record: the highest timestamp so far, within the limit. As `time_of`."""
        if self.limit is None:
            given = plain(messages)
            stamps = [stamp for _, stamp in map(type(given[0]).timestamp, given)]
            passed = accumulate(stamps, max, initial=self._clock.now)
            next(passed)
            return passed
        return (max(self._clock.now, self.time_of(message)) for message in messages)

    def reach(self, now: int) -> bool:
        """Advance event time to `now`, never back; stop at each due timer on the way. False: a slice ends before it."""
        clock, slices = self._clock, self.slices
        now = max(now, clock.now)
        for dated in self._dated:
            if dated.earliest <= now:
                if not self._fire(now):
                    return False
                break
        clock.now = now
        if slices.rows or slices.inside:
            slices.reached()
        for table in self._expiring:
            if table.next_expiry <= now:
                table.sweep()
        self._horizon.at = self._next
        return True

    def repeat(self, until: int, rows: int) -> None:
        """Hand over this number of rows on the way to a time, as a live worker did in a transaction."""
        self.slices.left = rows
        try:
            self._fire(max(until, self._clock.now))
        finally:
            self.slices.end()
            self.slices.reached()

    @property
    def _next(self) -> float:
        """The earliest possible time at which a row is due, or a key expires."""
        return min((self.due, *(table.next_expiry for table in self._expiring)))

    def forget(self) -> None:
        """Roll back the open transaction."""
        if self._timers is not None:
            self._timers.forget()
        self.slices.reached()

    def _fire(self, now: int) -> bool:
        """Hand over what is due at or before `now`, in order; return whether that is done: a slice may end before."""
        slices = self.slices
        while (due := self.due) <= now:
            if (slices.left <= 0 or not slices.goes_on) and slices.full():
                if not self.has_due(now):  # a rollback may have left entries of no row, and must not move the cuts
                    return True
                slices.stop(now)
                return False
            self._fire_first(due)
        return True

    def _fire_first(self, due: float) -> None:
        """Hand over the first row, which is due at this time; an entry of none leaves the index."""
        self._fire_timer(due)

    def _fire_timer(self, until: float) -> None:
        """Fire the first timer that is due at or before `until`, if there is one."""
        timers = self._timers
        if timers is None or (due := timers.table.take(until)) is None:
            return
        self.slices.count()
        timer = timers.firing = timers.table[due]
        timers.table.delete(due)
        self._clock.now = max(self._clock.now, timer.due)
        try:
            self._handler.on_timer(timer)
        except Exception as error:
            raise DueFailed(f"on_timer of {timer.id!r}, due {visible_time(timer.due)}", error) from error
        timers.firing = None


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
    ) -> None:
        super().__init__(handler, clock, tables, handling)
        #: by name, because a new order of the declarations must not change a replay
        self.windows = [table for _, table in sorted(tables.items()) if isinstance(table, WindowTable | JoinTable)]
        self.joins = [table.name for table in self.windows if isinstance(table, JoinTable)]
        on_late = WeakMethod(handler.on_late)  # weak, because a cycle would keep a dropped state in memory
        for table in self.windows:
            table.follow(clock, on_late)
        self._dated += [table for table in self.windows if isinstance(table, WindowTable) or table.reported]
        #: writes the key of a row as that of a record; None: the keys of records have no declared type
        self.record_keys: RecordKeys | None = None

    def _fire_first(self, due: float) -> None:
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
        value = getattr(table.waiting(row), side)
        table.end(row)
        self._reach_row(table, key, table.due(row))
        try:
            self._handler.on_unmatched(table.attribute, key, side, value, timestamp)
        except Exception as error:
            what = f"on_unmatched of {table.name!r}, key {key!r}, {side} side, timestamp {timestamp}"
            raise DueFailed(what, error) from error
        self._leave_row()

    def _reach_row(self, table: ClosingTable[Any, Any], key: Any, due: int) -> None:
        """Advance event time to a row; timers that its hook schedules belong to its key."""
        self.slices.count()
        self._clock.now = max(self._clock.now, due)
        if self._timers is not None:
            record_key = None if self.record_keys is None else self.record_keys.of(key)
            if record_key is None:
                record_key = key.encode() if isinstance(key, str) else key if isinstance(key, bytes) else None
            self._timers.firing = Timer(table.name, due, None, record_key)

    def _leave_row(self) -> None:
        if self._timers is not None:
            self._timers.firing = None


def event_time(
    handler: Handler[Any],
    tables: dict[str, PartitionTable[Any, Any]],
    handling: Handling,
) -> EventTime | None:
    """Return None for a handler without timers, windows, joins and expiry."""
    clock = tables.get(CLOCK)
    if not isinstance(clock, ClockTable):
        return None
    kind = WindowTime if any(isinstance(table, ClosingTable) for table in tables.values()) else EventTime
    return kind(handler, clock, tables, handling)


def require_segments(event_time: EventTime | None, commit_record: CommitRecord, topic: str, advice: str) -> None:
    """Require that the writer of a transaction removed rows of joins as this release does. `topic`: the input.

    :raises UpgradeUnfinished: this release cannot repeat the transaction.
    """
    joins = event_time.joins if isinstance(event_time, WindowTime) else []
    writer = commit_record.writer
    if joins and writer.reads < frame.SEGMENTS:
        raise UpgradeUnfinished(
            f"transaction {commit_record.n} of statehold {writer.version} ({writer.instance}) removed the rows of "
            f"{', '.join(joins)} one by one; this release removes them by segments, so it cannot repeat the "
            f"transaction. Nothing was changed. Next: {advice}",
            topic=topic,
            partition=commit_record.partition,
            position=commit_record.position(topic),
        )
