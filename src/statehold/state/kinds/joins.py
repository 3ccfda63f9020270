"""Joins of two streams: a table that keeps the records of both sides until they are too old to find a partner."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from statehold.api.joins import LEFT, REPORTED, RIGHT, BufferedRecord, JoinBuffer, Row, join_options
from statehold.api.record import Record
from statehold.errors import UsageError
from statehold.state.digest import table_digest
from statehold.state.kinds.clock import Horizon
from statehold.state.kinds.due_index import DueIndex
from statehold.state.kinds.join_rows import JoinRows, RowSegment, RowSegments
from statehold.state.kinds.windows import ClosingTable
from statehold.state.partition_table import ABSENT, Changes

K = TypeVar("K")
L = TypeVar("L")
R = TypeVar("R")

#: of the time that a row stays; a segment leaves at once, so rows stay in memory for at most one more
SEGMENTS: Final = 8
_NOTHING: Final[Mapping[Any, Any]] = {}


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

    def left(self, record: Record[Any, Any], key: K, value: L | None = None) -> list[R]:
        return self._join(record, key, LEFT, RIGHT, value)

    def right(self, record: Record[Any, Any], key: K, value: R | None = None) -> list[L]:
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
        self._by_key().add(key)
        if value.waiting and key[1] in self.reported:
            self._wait(key)
        self._rewrites = True
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
        self._index.push(when, row)
        self.horizon.at = min(self.horizon.at, when)

    # For the engine

    @property
    def earliest(self) -> float:
        return self._index.earliest

    @property
    def known(self) -> float:
        """As that of `DueTable`."""
        return self._index.known

    def has_due(self, until: float) -> bool:
        """Return whether an unmatched row is due at or before `until`; see `DueIndex.has_due`."""
        return self._index.has_due(until, self._waits_until)

    def take(self, until: float) -> Row[K] | None:
        return self._index.take(until, self._waits_until)

    def end(self, row: Row[K]) -> None:
        """Remove a row of the table."""
        self._cache.pop(row, None)
        if row in self.stored or row in self._frozen:
            self._dirty[row], self._deletes, self._rewrites = ABSENT, True, True
        else:  # no commit has it, so no tombstone is needed
            self._dirty.pop(row, None)
            self._by_key().discard((row,))

    def _empty(self) -> None:
        super()._empty()
        #: the rows that may wait for their first partner
        self._index: DueIndex[Row[K]] = DueIndex()
        #: every stored row and every row of an open transaction by key and side; None until it is needed
        self._rows: JoinRows[K] | None = None
        #: the committed rows by segment; None until they are needed
        self._segments: RowSegments[K] | None = None
        #: the segments that leave with the frozen transaction
        self._leaving: dict[int, RowSegment[K]] = {}
        #: rows in `order` that have left with their segments
        self._left = 0
        #: the open transaction may have written a row that was there before
        self._rewrites = False
        #: every row of the frozen transaction is new
        self._all_new = False

    def freeze(self) -> Changes:
        """Do as any table; the rows of segments that leave come last."""
        first = (self._now - self._stays) // self._span
        end = first * self._span
        if self._segments is None:
            self._segments, self.segmented = RowSegments(self._span, self.stored), True
        self._leaving = {number: self._whole(segment) for number, segment in self._segments.before(first)}
        # By side, because the deletions of a delta then compress to three quarters of the bytes.
        gone = sorted(chain.from_iterable(segment.rows for segment in self._leaving.values()), key=itemgetter(1))
        for row in [row for row in self._dirty if row[2] < end]:
            if row in self.stored:
                del self._dirty[row]
            else:
                self.end(row)
        changes = super().freeze()
        self._all_new, self._rewrites = self.plain and not self._rewrites, False
        self._index.freeze()
        return Changes(self.name, changes.keys + gone, changes.values + [None] * len(gone)) if gone else changes

    def _whole(self, segment: RowSegment[K]) -> RowSegment[K]:
        """Return a segment with each of its stored rows once, and their digest."""
        stored = self.stored
        if segment.torn:
            segment.rows, segment.torn = [row for row in dict.fromkeys(segment.rows) if row in stored], False
        if segment.digest is None:
            segment.digest = table_digest(self.name, segment.rows, map(stored.__getitem__, segment.rows))
        return segment

    def effect(self, changes: Changes, before: Callable[[Changes], list[bytes | None]]) -> tuple[int, int]:
        assert self._segments is not None
        gone = sum(len(segment.rows) for segment in self._leaving.values())
        if gone:
            written = len(changes.keys) - gone
            changes = Changes(changes.table, changes.keys[:written], changes.values[:written])
        were: list[bytes | None] = [None] * len(changes.keys) if self._all_new else before(changes)
        added, born = self._segments.effect(changes, were)
        return added - sum(segment.digest or 0 for segment in self._leaving.values()), born - gone

    def commit(self) -> None:
        deleted = []
        if None in self._frozen.values():
            deleted = [row for row, value in self._frozen.items() if value is None and row not in self._dirty]
        super().commit()
        if self._rows is not None and deleted:
            self._rows.discard(deleted)
        for number, segment in self._leaving.items():
            self._drop(number, segment.rows)
        self._leaving, self._all_new = {}, False
        self._index.commit()
        if self._index.is_long(len(self.stored)):
            self._build()

    def _drop(self, number: int, rows: list[Row[K]]) -> None:
        """Remove the rows of a segment; none of them comes back."""
        deque(map(self.stored.pop, rows), 0)
        deque(map(self._cache.pop, rows, repeat(None)), 0)
        if self._rows is not None:
            self._rows.leave(rows)
        if self._segments is not None:
            self._segments.remove(number)
        self._left += len(rows)
        self._trim()

    def _trim(self, others: int = 0) -> None:
        order = self.order
        super()._trim(others + self._left)
        if self.order is not order:
            self._left = 0

    def apply(self, keys: list[Row[K]], values: list[bytes | None]) -> None:
        if self._all_new:
            self.stored.update(zip(keys, values, strict=True))  # type: ignore[arg-type]  # none is deleted
            tombed = self._tombed
            self.order += [row for row in keys if row not in tombed] if tombed else keys
            tombed.difference_update(keys)
        else:
            super().apply(keys, values)
        if self._segments is not None:
            self._segments.apply()

    def rollback(self) -> None:
        written = [*self._frozen, *self._dirty]
        super().rollback()
        self._leaving, self._rewrites, self._all_new = {}, False, False
        if self._segments is not None:
            self._segments.forget()
        if self._rows is not None:
            self._rows.discard([row for row in written if row not in self.stored])
        self._index.rollback()

    def loaded(self) -> None:
        super().loaded()
        self._rows, self._segments, self.segmented, self._leaving, self._left = None, None, False, {}, 0
        self._build()

    def _build(self) -> None:
        """Build the index of waiting rows from the keys. No value is decoded; `take` finds out which have a partner."""
        rows = (row for row in dict.fromkeys((*self.stored, *self._dirty)) if row[1] in self.reported)
        self._index = DueIndex((self.due(row), row) for row in rows)

    def _join(self, record: Record[Any, Any], key: K, side: str, other: str, value: Any) -> list[Any]:
        """Keep a record, and return the values of its partners, of which none is waiting any more."""
        kept, kind = record.value if value is None else value, self._classes[side]
        if kept is None or (kind is not None and not isinstance(kept, kind)):
            raise self._refused(side, kept)
        at: int = record.message.timestamp()[1]
        over = self._clock.now - self._stays  # type: ignore[union-attr]  # the engine has set it
        if at <= over:
            self._pass_on(key, record)
            return []
        index, partners = self._rows or self._by_key(), []
        if key in index.sides[other]:
            decoded = self._cache if self.plain else _NOTHING
            for row in index.between(key, other, max(at - self.within, over + 1), at + self.within):
                if (partner := decoded.get(row) or self.get(row)) is None:
                    continue
                partners.append(getattr(partner, other))
                if partner.waiting:
                    self._rewrites = True
                    self._replace(row, BufferedRecord(partner.left, partner.right))
        mine = index.sides[side]
        if key in mine:
            row = key, side, at, self._number(index.between(key, side, at, at))
            index.add(row)
        else:
            row = mine[key] = key, side, at, 0
        waiting = not partners and side in self.reported
        found = BufferedRecord(kept, None, waiting) if side == LEFT else BufferedRecord(None, kept, waiting)
        if self.plain:
            self._cache[row] = self._dirty[row] = found
        else:
            self._replace(row, found)
        if waiting:
            self._wait(row)
        return partners

    def _number(self, same: Sequence[Row[K]]) -> int:
        """Return the number of a new row behind those of its key, side and timestamp."""
        return next((row[3] + 1 for row in reversed(same) if row in self), 0)

    def _by_key(self) -> JoinRows[K]:
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
