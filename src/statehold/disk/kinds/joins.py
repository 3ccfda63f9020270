"""Joins on disk: partners are found by the order of the files, rows that are over by the index of times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, starmap
from operator import itemgetter
from typing import Any, Final, TypeVar

from statehold.api.joins import LEFT, RIGHT, BufferedRecord, Row
from statehold.disk.dated import DatedDiskTable, Entry
from statehold.disk.keys import INT_BYTES, NO_KEY, KeyCodec, encode_int
from statehold.disk.port import PartitionStore
from statehold.disk.stored import StoredOnDisk
from statehold.disk.tables import DecodedBudget, DiskTable
from statehold.state.digest import hash128, seeds
from statehold.state.kinds.join_rows import JoinRows
from statehold.state.kinds.joins import JoinTable
from statehold.state.partition_table import ABSENT, Changes

K = TypeVar("K")
L = TypeVar("L")
R = TypeVar("R")


#: rows whose values are read at once
_PIECE: Final = 1000


class _AnyKey(dict[Any, Any]):
    """Says that it has any key, because only the files know; `between` looks there."""

    def __contains__(self, key: object) -> bool:
        return True


class RowsOnDisk(JoinRows[K]):
    """The rows in the files by key, side and time; in memory only those that the files do not have yet."""

    __slots__ = ("_stored",)

    def __init__(self, rows: Iterable[Row[K]], stored: StoredOnDisk) -> None:
        super().__init__()
        self._stored, self.sides = stored, {LEFT: _AnyKey(), RIGHT: _AnyKey()}
        for row in rows:
            self.add(row)

    def between(self, key: K, side: str, first: int, last: int) -> Sequence[Row[K]]:
        above = super().between(key, side, first, last)
        try:
            low = self._stored.codec.cut((key, side, first))
        except NO_KEY:
            return above  # no key of this type: its record fails at the commit, as in memory
        found = list(self._stored.held(low, low[:-INT_BYTES] + encode_int(last + 1)))
        return sorted({*found, *above}) if above and found else found or above


class JoinDiskTable(JoinTable[K, L, R], DatedDiskTable[Row[K], BufferedRecord[L, R]]):
    """`JoinTable` with its rows, and the index of their times, in the files.

    No segment is kept in memory. The index says which rows leave, and their values are read again for the digest.
    """

    whole_keys = "join"
    #: the time before which all rows have left: with a commit, and with the frozen transaction
    _gone_to, _goes_to = -math.inf, -math.inf
    #: the time before which the frozen transaction leaves nothing due
    _settles_to = 0

    def attach(self, store: PartitionStore, codec: KeyCodec, budget: DecodedBudget) -> None:
        self._shift = self._stays  # an entry has the time of its row, because a release may change the others
        super().attach(store, codec, budget)

    def end(self, row: Row[K]) -> None:
        if row in self._frozen or self.before(row) is not None:
            self._expire(row)
            self._rewrites = True
        else:  # as in memory
            self._cache.pop(row, None)
            self._older.pop(row, None)
            self._dirty.pop(row, None)
            self._by_key().discard((row,))

    def freeze(self) -> Changes:
        end = (self._now - self._stays) // self._span * self._span
        if end > self._gone_to:
            self._leave(end)
        changes = DiskTable.freeze(self)
        self._all_new, self._rewrites = self.plain and not self._rewrites, False
        self._index.freeze()
        self._goes_to, self._settles_to = end, int(min(self._index.earliest, self._now))
        return changes

    def _leave(self, end: int) -> None:
        """Delete the rows of the segments before a time."""
        unwritten = self.stored.unwritten
        with closing(self._store.snapshot()) as snapshot:
            entries = snapshot.rows(self.index, None, encode_int(end))
            gone = [row for _, row in starmap(self._entry, entries) if row not in unwritten]
        gone += [row for row, data in unwritten.items() if data is not None and row[2] < end]
        for row in [row for row in self._dirty if row[2] < end and self.before(row) is None]:
            self.end(row)
        gone.sort(key=itemgetter(1))  # by side, as in memory
        for row in gone:
            self._expire(row)
        self.segmented = bool(gone)

    def effect(self, changes: Changes, before: Callable[[Changes], list[bytes | None]]) -> tuple[int, int]:
        """Read the values of the rows that leave in pieces, because they may be many."""
        added, born = 0, 0
        for first in range(0, len(changes.keys), _PIECE):
            keys, values = (each[first : first + _PIECE] for each in (changes.keys, changes.values))
            were = before(Changes(changes.table, keys, values))
            for key, value, was, seed in zip(keys, values, were, seeds(changes.table, keys), strict=True):
                if value is was is None and key[2] < self._goes_to:
                    raise self._store.damaged(f"table {self.name!r}: its index has a row that the table does not have")
                added += (0 if value is None else hash128(value, seed)) - (0 if was is None else hash128(was, seed))
                born += (value is not None) - (was is not None)
        return added, born

    def commit(self) -> None:
        super().commit()
        self._gone_to, self._due_from = self._goes_to, encode_int(self._settles_to - self._shift)

    def apply(self, keys: list[Row[K]], values: list[bytes | None]) -> None:
        DatedDiskTable.apply(self, keys, values)

    def rollback(self) -> None:
        DiskTable.rollback(self)
        self._rows, self._rewrites, self._all_new = None, False, False
        self._begin()

    def loaded(self) -> None:
        self._rows, self._gone_to, self._due_from = None, -math.inf, None
        self._begin()

    def filed(self) -> None:
        super().filed()
        self._rows = None

    def before(self, key: Any) -> bytes | None:
        if self._all_new and self._frozen.get(key) is not None:
            return None
        return super().before(key)

    def before_each(self, keys: list[Any]) -> list[bytes | None]:
        if not self._all_new:
            return super().before_each(keys)
        frozen = self._frozen
        found = iter(super().before_each([key for key in keys if frozen.get(key) is None]))
        return [next(found) if frozen.get(key) is None else None for key in keys]

    # The index

    def _due_in(self, key: Row[K], data: bytes) -> int:
        return self.due(key)

    def _recent(self) -> Iterator[Entry]:
        for layer in (self.stored.unwritten, self._frozen, self._dirty):
            for row, value in layer.items():
                if row[1] in self.reported and value is not None and value is not ABSENT:
                    yield self.due(row), row

    def _read(self, after: bytes | None, most: int) -> list[tuple[bytes, Entry]]:
        return super()._read(after, most) if self.reported else []

    def _waits_until(self, row: Row[K]) -> int | None:
        return super()._waits_until(row) if row[1] in self.reported else None

    def _by_key(self) -> JoinRows[K]:
        if self._rows is None:
            self._rows = RowsOnDisk(chain(self.stored.unwritten, self._frozen, self._dirty), self.stored)
        return self._rows
