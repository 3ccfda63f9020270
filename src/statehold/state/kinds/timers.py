"""Timers of a partition: stored in a table, due by the partition's own time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from statehold.api.record import Numbering, Record
from statehold.api.table import Table
from statehold.api.timer import Timer
from statehold.errors import UsageError
from statehold.state.kinds.due_index import DueTable


class TimerTable(DueTable[str, Timer]):
    """Timers by id."""

    def __init__(self) -> None:
        # mutable, because the handler gets a timer only when it has left the table
        super().__init__(Table(key=str, value=Timer, mutable=True))

    def due(self, key: str, value: Timer) -> int:
        return value.due


class PartitionTimers:
    """Implements `schedule` and `cancel` of one handler."""

    def __init__(self, table: TimerTable, record: Callable[[], Record[Any, Any] | None]) -> None:
        self.table, self._record = table, record
        #: the timer in on_timer, because timers that it schedules belong to the same key
        self.firing: Timer | None = None
        self.numbering = Numbering()

    def schedule(self, at: datetime | int, payload: Any, id: str) -> str:
        """:raises UsageError: no record is being handled, the time has no zone, or the payload is not plain data."""
        record = self._record()
        if record is None:
            raise UsageError("schedule() belongs to a record: call it from on_record, on_timer or on_command")
        due = at if isinstance(at, int) else _milliseconds(at)
        try:
            plain = msgspec.msgpack.decode(msgspec.msgpack.encode(payload))
        except (TypeError, OverflowError) as error:
            raise UsageError(f"schedule(): the payload must be plain data (msgpack): {error}") from error
        key = record.raw_key if self.firing is None else self.firing.record_key
        timer = Timer(id or self._own_id(record), due, plain, key)
        self.table[timer.id] = timer
        return timer.id

    def cancel(self, id: str) -> bool:
        """Remove a timer. Return whether it existed."""
        there = id in self.table
        self.table.delete(id)
        return there

    def forget(self) -> None:
        """Restart the numbering of ids after a rollback, because the records are handled again."""
        self.numbering.forget()
        self.firing = None

    def _own_id(self, record: Record[Any, Any]) -> str:
        return f"{record.topic}/{record.partition}/{record.offset}/{self.numbering.next(record)}"


def _milliseconds(at: datetime) -> int:
    if at.tzinfo is None:
        raise UsageError(f"schedule({at!r}): a time without a zone depends on the machine. Next: give it a tzinfo")
    return round(at.timestamp() * 1000)
