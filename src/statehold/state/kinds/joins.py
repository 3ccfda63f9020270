"""Joins of two streams: a table that keeps the records of both sides until they are too old to find a partner."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from statehold.api.joins import LEFT, REPORTED, RIGHT, BufferedRecord, JoinBuffer, Row, join_options
from statehold.api.record import Record
from statehold.errors import UsageError
from statehold.state.kinds.due_index import DueIndex
from statehold.state.kinds.join_rows import JoinRows
from statehold.state.kinds.ttl import SWEEP
from statehold.state.kinds.windows import ClosingTable
from statehold.state.partition_table import ABSENT, Changes

K = TypeVar("K")
L = TypeVar("L")
R = TypeVar("R")


class JoinTable(ClosingTable[Row[K], BufferedRecord[L, R]], JoinBuffer[K, L, R], Generic[K, L, R]):
    """The rows of a join, found by key, side and timestamp."""

    def __init__(self, declaration: JoinBuffer[K, L, R]) -> None:
        super().__init__(declaration)
        options = join_options(declaration)
        self.within, self.grace, self._classes = options.within, options.grace, options.classes
        #: milliseconds after its timestamp at which a row is over
        self._stays = self.within + self.grace + 1
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
        if self._index().add(key) or key not in self:
            self._leaving.push(when, key)
        if value.waiting:
            self._waiting.push(when, key)
        super().__setitem__(key, value)

    def put(self, key: Row[K], value: BufferedRecord[L, R]) -> None:
        self[key] = value

    def delete(self, key: Row[K]) -> None:
        if key in self:
            self._remove(key)

    def _remove(self, row: Row[K]) -> None:
        self._cache.pop(row, None)
        if row in self.stored or row in self._frozen:
            self._dirty[row], self._deletes = ABSENT, True
        else:  # no commit has it, so no tombstone is needed
            self._dirty.pop(row, None)
            self._index().discard((row,))

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
        leaving, now, most = self._leaving, self._now, SWEEP
        while most and (row := leaving.pop(now)) is not None:
            if row in self:
                self._remove(row)
                most -= 1

    def _empty(self) -> None:
        super()._empty()
        #: every row; the rows that may wait for their first partner
        self._leaving: DueIndex[Row[K]] = DueIndex()
        self._waiting: DueIndex[Row[K]] = DueIndex()
        #: every stored row and every row of an open transaction by key and side; None until it is needed
        self._rows: JoinRows[K] | None = None

    def freeze(self) -> Changes:
        changes = super().freeze()
        self._leaving.freeze()
        self._waiting.freeze()
        return changes

    def commit(self) -> None:
        dirty = self._dirty
        deleted = [row for row, value in self._frozen.items() if value is None and row not in dirty]
        super().commit()
        if self._rows is not None:
            self._rows.discard(deleted)
        self._leaving.commit()
        self._waiting.commit()
        if self._leaving.is_long(len(self.stored)) or self._waiting.is_long(len(self.stored)):
            self._build()

    def rollback(self) -> None:
        written = [*self._frozen, *self._dirty]
        super().rollback()
        if self._rows is not None:
            self._rows.discard([row for row in written if row not in self.stored])
        self._leaving.rollback()
        self._waiting.rollback()

    def loaded(self) -> None:
        super().loaded()
        self._rows = None
        self._build()

    def _build(self) -> None:
        """Build both indexes from the keys; no value is decoded, so `take` finds out which rows have a partner."""
        rows = [(self.due(row), row) for row in dict.fromkeys((*self.stored, *self._dirty))]
        self._leaving = DueIndex(rows)
        self._waiting = DueIndex(entry for entry in rows if entry[1][1] in self.reported)

    def _join(self, record: Record[Any], key: K, side: str, other: str, value: Any) -> list[BufferedRecord[L, R]]:
        """Keep a record, and return its partners, of which none is waiting any more."""
        kept, kind = record.value if value is None else value, self._classes[side]
        if kept is None or (kind is not None and not isinstance(kept, kind)):
            raise self._refused(side, kept)
        at, now, within = record.timestamp, self._now, self.within
        if at + self._stays <= now:
            self._pass_on(key, record)
            return []
        # Rows whose time is over may still be there.
        oldest = max(at - within, now - self._stays + 1)
        index, partners = self._index(), []
        for row in index.between(key, other, oldest, at + within):
            if (partner := self.get(row)) is None:
                continue
            partners.append(partner)
            if partner.waiting:
                self[row] = BufferedRecord(partner.left, partner.right)
        waiting = not partners and side in self.reported
        number = 0
        for row in reversed(index.between(key, side, at, at)):
            if row in self:
                number = row[3] + 1
                break
        left, right = (kept, None) if side == LEFT else (None, kept)
        self[key, side, at, number] = BufferedRecord(left, right, waiting)
        return partners

    def _index(self) -> JoinRows[K]:
        if self._rows is None:
            self._rows = JoinRows(dict.fromkeys((*self.stored, *self._frozen, *self._dirty)))
        return self._rows

    def _refused(self, side: str, value: Any) -> UsageError:
        if value is None:
            return UsageError(f"{self.name}.{side}: the value is None, and a null value has no partner. Next: skip it")
        kind = self._classes[side]
        assert kind is not None
        return UsageError(
            f"{self.name}.{side}: the value has type {type(value).__name__}, its declaration {side}={kind.__name__}"
        )

    def due(self, row: Row[K]) -> int:
        """Return the first millisecond at which the row is over: a partner may still come at the last one before."""
        return row[2] + self._stays

    def _waits_until(self, row: Row[K]) -> int | None:
        kept = self.get(row)
        return self.due(row) if kept is not None and kept.waiting else None
