"""Joins of two streams: a table that keeps the records of both sides until they are too old to find a partner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from statehold.declarations.joins import LEFT, REPORTED, RIGHT, BufferedRecord, JoinBuffer, Row, join_options
from statehold.errors import UsageError
from statehold.record import Record
from statehold.table import Changes
from statehold.tables.due_index import DueIndex
from statehold.tables.sorted import SortedTable
from statehold.tables.ttl import SWEEP
from statehold.tables.windows import ClosingTable

K = TypeVar("K")
L = TypeVar("L")
R = TypeVar("R")


class JoinTable(
    SortedTable[Row[K], BufferedRecord[L, R]],
    ClosingTable[Row[K], BufferedRecord[L, R]],
    JoinBuffer[K, L, R],
    Generic[K, L, R],
):
    """The rows of a join, sorted by key, side and timestamp."""

    def __init__(self, declaration: JoinBuffer[K, L, R]) -> None:
        super().__init__(declaration)
        options = join_options(declaration)
        self.within, self.grace, self._classes = options.within, options.grace, options.classes
        #: the sides whose unmatched records the handler gets
        self.reported = REPORTED[options.join]

    def left(self, record: Record[Any], key: K, value: L | None = None) -> list[R]:
        return [kept.right for kept in self._join(record, key, LEFT, RIGHT, value)]  # type: ignore[misc]

    def right(self, record: Record[Any], key: K, value: R | None = None) -> list[L]:
        return [kept.left for kept in self._join(record, key, RIGHT, LEFT, value)]  # type: ignore[misc]

    def __setitem__(self, key: Row[K], value: BufferedRecord[L, R]) -> None:
        when = self.due(key)
        if when <= self._now:
            raise UsageError(f"{self.name}: the time of {key!r} is over. Next: use left() or right()")
        if key not in self:
            self._leaving.push(when, key)
        if value.waiting:
            self._waiting.push(when, key)
        super().__setitem__(key, value)

    def delete(self, key: Row[K]) -> None:
        super().delete(key)
        if key not in self._frozen and key not in self.stored:
            self._dirty.pop(key, None)  # no commit has it, so no tombstone is needed
            self._keys().discard(key)

    # For the engine

    @property
    def earliest(self) -> float:
        return self._waiting.earliest

    def has_due(self, until: float) -> bool:
        """Return whether an unmatched row is due at or before `until`; see `DueIndex.has_due`."""
        return self._waiting.has_due(until, self._waits_until, is_open=bool(self._dirty or self._frozen))

    def take(self, until: float) -> Row[K] | None:
        return self._waiting.take(until, self._waits_until)

    @property
    def next_expiry(self) -> float:
        """The earliest possible time at which a row leaves."""
        return self._leaving.earliest

    def sweep(self) -> None:
        """Remove some of the rows whose time is over; those that on_unmatched gets have left before."""
        for _ in range(SWEEP):
            if (row := self._leaving.take(self._now, self._leaves_at)) is None:
                return
            self.delete(row)

    def _empty(self) -> None:
        super()._empty()
        #: every row; the rows that may wait for their first partner
        self._leaving: DueIndex[Row[K]] = DueIndex()
        self._waiting: DueIndex[Row[K]] = DueIndex()

    def freeze(self) -> Changes:
        changes = super().freeze()
        self._leaving.freeze()
        self._waiting.freeze()
        return changes

    def commit(self) -> None:
        super().commit()
        self._leaving.commit()
        self._waiting.commit()
        if self._leaving.is_long(len(self.stored)) or self._waiting.is_long(len(self.stored)):
            self._build()

    def rollback(self) -> None:
        super().rollback()
        self._leaving.rollback()
        self._waiting.rollback()

    def loaded(self) -> None:
        super().loaded()
        self._build()

    def _build(self) -> None:
        """Build both indexes from the keys; no value is decoded, so `take` finds out which rows have a partner."""
        rows = [(self.due(row), row) for row in dict.fromkeys((*self.stored, *self._dirty))]
        self._leaving = DueIndex(rows)
        self._waiting = DueIndex(entry for entry in rows if entry[1][1] in self.reported)

    def _join(self, record: Record[Any], key: K, side: str, other: str, value: Any) -> list[BufferedRecord[L, R]]:
        """Keep a record, and return its partners, of which none is waiting any more."""
        kept, at, now = self._checked(side, record.value if value is None else value), record.timestamp, self._now
        if at + self.within + self.grace < now:
            self._pass_on(key, record)
            return []
        # Rows whose time is over may still be there.
        oldest = max(at - self.within, now - self.within - self.grace)
        partners = []
        for row in list(self._between(key, other, oldest, at + self.within)):
            partners.append(partner := self[row])
            if partner.waiting:
                self[row] = BufferedRecord(partner.left, partner.right)
        waiting = not partners and side in self.reported
        number = next((row[3] + 1 for row in self._between(key, side, at, at, reverse=True)), 0)
        self[key, side, at, number] = BufferedRecord(**{side: kept}, waiting=waiting)
        return partners

    def _between(self, key: K, side: str, first: int, last: int, *, reverse: bool = False) -> Iterator[Row[K]]:
        """Yield the rows of a key and a side by timestamp and number; both timestamps are included."""
        low: Any = (key, side, first)
        high: Any = (key, side, last + 1)
        rows: Iterator[Row[K]] = self._keys().irange(low, high, inclusive=(True, False), reverse=reverse)
        return (row for row in rows if row in self)

    def _checked(self, side: str, value: Any) -> Any:
        kind = self._classes[side]
        if value is None:
            raise UsageError(f"{self.name}.{side}: the value is None, and a null value has no partner. Next: skip it")
        if kind is not None and not isinstance(value, kind):
            raise UsageError(
                f"{self.name}.{side}: the value has type {type(value).__name__}, its declaration {side}={kind.__name__}"
            )
        return value

    def due(self, row: Row[K]) -> int:
        """Return the first millisecond at which the row is over: a partner may still come at the last one before."""
        return row[2] + self.within + self.grace + 1

    def _leaves_at(self, row: Row[K]) -> int | None:
        return self.due(row) if row in self else None

    def _waits_until(self, row: Row[K]) -> int | None:
        kept = self.get(row)
        return self.due(row) if kept is not None and kept.waiting else None
