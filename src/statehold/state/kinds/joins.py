"""Joins of two streams: a table that keeps the records of both sides until they are too old to find a partner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final, Generic, TypeVar

from statehold.api.joins import LEFT, REPORTED, RIGHT, BufferedRecord, JoinBuffer, Row, join_options
from statehold.api.record import Record
from statehold.errors import UsageError
from statehold.state.kinds.clock import Horizon
from statehold.state.kinds.due_index import DueIndex
from statehold.state.kinds.join_rows import JoinRows
from statehold.state.kinds.windows import ClosingTable
from statehold.state.partition_table import ABSENT, Changes

K = TypeVar("K")
L = TypeVar("L")
R = TypeVar("R")

#: of the time that a row stays; a segment leaves at once, so rows stay in memory for at most one more
SEGMENTS: Final = 8


class JoinTable(ClosingTable[Row[K], BufferedRecord[L, R]], JoinBuffer[K, L, R], Generic[K, L, R]):
    """The rows of a join, found by key, side and timestamp."""

    #: as of `DueTable`
    horizon = Horizon()

    def __init__(self, declaration: JoinBuffer[K, L, R]) -> None:
        super().__init__(declaration)
        options = join_options(declaration)
        self.within, self.grace, self._classes = options.within, options.grace, options.classes
        #: milliseconds after its timestamp at which a row is over
        self._stays = self.within + self.grace + 1
        #: milliseconds of a segment; never change it, because a replay would arrive at another state
        self._span = max(1, self._stays // SEGMENTS)
        #: the sides whose unmatched records the handler gets
        self.reported = REPORTED[options.join]

    def left(self, record: Record[Any], key: K, value: L | None = None) -> list[R]:
        return self._join(record, key, LEFT, RIGHT, value)

    def right(self, record: Record[Any], key: K, value: R | None = None) -> list[L]:
        return self._join(record, key, RIGHT, LEFT, value)

    def get(self, key: Row[K], default: Any = None) -> Any:
        value: Any = super().get(key, ABSENT)
        return default if value is ABSENT or self._is_over(key) else value

    def __getitem__(self, key: Row[K]) -> BufferedRecord[L, R]:
        value = super().__getitem__(key)
        if self._is_over(key):
            raise self._missing(key)
        return value

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) and not self._is_over(key)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __setitem__(self, key: Row[K], value: BufferedRecord[L, R]) -> None:
        if self._is_over(key):
            raise UsageError(f"{self.name}: the time of {key!r} is over. Next: use left() or right()")
        self._index().add(key)
        if value.waiting:
            self._wait(key)
        super().__setitem__(key, value)

    def put(self, key: Row[K], value: BufferedRecord[L, R]) -> None:
        self[key] = value

    def delete(self, key: Row[K]) -> None:
        if key in self:
            self.end(key)

    def _is_over(self, row: Any) -> bool:
        """Return whether a row has left, or leaves with its segment: the handler finds it no more."""
        return self._clock is not None and row[2] + self._stays <= self._clock.now

    def _wait(self, row: Row[K]) -> None:
        when = self.due(row)
        self._waiting.push(when, row)
        self.horizon.at = min(self.horizon.at, when)

    # For the engine

    @property
    def earliest(self) -> float:
        return self._waiting.earliest

    def has_due(self, until: float) -> bool:
        """Return whether an unmatched row is due at or before `until`; see `DueIndex.has_due`."""
        return self._waiting.has_due(until, self._waits_until, is_open=bool(self._dirty or self._frozen))

    def take(self, until: float) -> Row[K] | None:
        return self._waiting.take(until, self._waits_until)

    def end(self, row: Row[K]) -> None:
        """Remove a row of the table."""
        self._cache.pop(row, None)
        if row in self.stored or row in self._frozen:
            self._dirty[row], self._deletes = ABSENT, True
        else:  # no commit has it, so no tombstone is needed
            self._dirty.pop(row, None)
            self._index().discard((row,))

    def _empty(self) -> None:
        super()._empty()
        #: the rows that may wait for their first partner
        self._waiting: DueIndex[Row[K]] = DueIndex()
        #: every stored row and every row of an open transaction by key and side; None until it is needed
        self._rows: JoinRows[K] | None = None
        #: the committed rows by segment; None until they are needed
        self._segments: dict[int, list[Row[K]]] | None = None
        #: the rows that leave with the frozen transaction, by segment
        self._gone: dict[int, list[Row[K]]] = {}

    def freeze(self) -> Changes:
        first = (self._now - self._stays) // self._span
        end = first * self._span
        for row in [row for row in self._dirty if row[2] < end and row not in self.stored]:
            self.end(row)
        over = [(number, rows) for number, rows in sorted(self._by_segment().items()) if number < first]
        leaving = {number: [row for row in dict.fromkeys(rows) if row in self.stored] for number, rows in over}
        gone = list(chain.from_iterable(leaving.values()))
        for row in gone:
            self._dirty.pop(row, None)
        changes = super().freeze()
        self._waiting.freeze()
        self._gone = leaving
        return Changes(self.name, changes.keys + gone, changes.values + [None] * len(gone)) if gone else changes

    def commit(self) -> None:
        deleted = [row for row, value in self._frozen.items() if value is None and row not in self._dirty]
        super().commit()
        gone = list(chain.from_iterable(self._gone.values()))
        self._drop(gone)
        for number in self._gone:
            self._by_segment().pop(number, None)
        if self._rows is not None:
            self._rows.discard(chain(deleted, gone))
        self._waiting.commit()
        if self._waiting.is_long(len(self.stored)):
            self._build()

    def _by_segment(self) -> dict[int, list[Row[K]]]:
        if self._segments is None:
            self._segments = {}
            self._assign(self.stored)
        return self._segments

    def apply(self, keys: list[Row[K]], values: list[bytes | None]) -> None:
        order, known = self.order, len(self.order)
        super().apply(keys, values)
        if self._segments is None:
            return
        if order is self.order:
            self._assign(order[known:])
        else:  # it was rebuilt
            self._segments = None

    def _assign(self, rows: Iterable[Row[K]]) -> None:
        segments, span = self._segments, self._span
        assert segments is not None
        for row in rows:
            number = row[2] // span
            if number in segments:
                segments[number].append(row)
            else:
                segments[number] = [row]

    def rollback(self) -> None:
        written = [*self._frozen, *self._dirty]
        super().rollback()
        if self._rows is not None:
            self._rows.discard([row for row in written if row not in self.stored])
        self._waiting.rollback()

    def loaded(self) -> None:
        super().loaded()
        self._rows = self._segments = None
        self._build()

    def _build(self) -> None:
        """Build the index of waiting rows from the keys. No value is decoded; `take` finds out which have a partner."""
        rows = (row for row in dict.fromkeys((*self.stored, *self._dirty)) if row[1] in self.reported)
        self._waiting = DueIndex((self.due(row), row) for row in rows)

    def _join(self, record: Record[Any], key: K, side: str, other: str, value: Any) -> list[Any]:
        """Keep a record, and return the values of its partners, of which none is waiting any more."""
        kept, kind = record.value if value is None else value, self._classes[side]
        if kept is None or (kind is not None and not isinstance(kept, kind)):
            raise self._refused(side, kept)
        at: int = record.message.timestamp()[1]
        if at + self._stays <= self._clock.now:  # type: ignore[union-attr]  # the engine has set it
            self._pass_on(key, record)
            return []
        index, partners = self._rows or self._index(), []
        if key in index.sides[other]:
            for row in index.between(key, other, at - self.within, at + self.within):
                if (partner := self.get(row)) is None:
                    continue
                partners.append(getattr(partner, other))
                if partner.waiting:
                    self._replace(row, BufferedRecord(partner.left, partner.right))
        mine = index.sides[side]
        if key in mine:
            row = key, side, at, self._number(index.between(key, side, at, at))
            index.add(row)
        else:
            row = mine[key] = key, side, at, 0
        waiting = not partners and side in self.reported
        self._replace(row, BufferedRecord(kept, None, waiting) if side == LEFT else BufferedRecord(None, kept, waiting))
        if waiting:
            self._wait(row)
        return partners

    def _number(self, same: Sequence[Row[K]]) -> int:
        """Return the number of a new row behind those of its key, side and timestamp."""
        return next((row[3] + 1 for row in reversed(same) if row in self), 0)

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

    def waiting(self, row: Row[K]) -> BufferedRecord[L, R] | None:
        """Return a row that waits for a partner, also when its time is over; None otherwise."""
        kept: BufferedRecord[L, R] | None = super().get(row)
        return kept if kept is not None and kept.waiting else None

    def _waits_until(self, row: Row[K]) -> int | None:
        return None if self.waiting(row) is None else self.due(row)
