"""The rows of a `JoinBuffer`, found by key, side and time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from statehold.api.joins import LEFT, RIGHT, Row

K = TypeVar("K")
_NO_ROWS: Final[tuple[Any, ...]] = ()


class JoinRows(Generic[K]):
    """Every row by side and key: one row as it is, several in a sorted list, because most keys have one. Not state."""

    __slots__ = ("sides",)

    def __init__(self, rows: Iterable[Row[K]] = ()) -> None:
        self.sides: dict[str, dict[K, Row[K] | list[Row[K]]]] = {LEFT: {}, RIGHT: {}}
        for row in rows:
            self.add(row)

    def add(self, row: Row[K]) -> bool:
        """Add a row; return False if it was there already."""
        side = self.sides[row[1]]
        kept = side.get(row[0])
        if kept is None:
            side[row[0]] = row
            return True
        if isinstance(kept, tuple):
            if kept == row:
                return False
            kept = side[row[0]] = [kept]
        if kept[-1] < row:
            kept.append(row)
        else:
            index = bisect_left(kept, row)
            if kept[index] == row:
                return False
            kept.insert(index, row)
        return True

    def discard(self, rows: Iterable[Row[K]]) -> None:
        """Remove rows, those of a key at once: mostly they are its oldest."""
        gone: dict[tuple[K, str], list[Row[K]]] = {}
        for row in rows:
            kept = self.sides[row[1]].get(row[0])
            if kept is None:
                continue
            if isinstance(kept, list):
                gone.setdefault(row[:2], []).append(row)
            elif kept == row:
                del self.sides[row[1]][row[0]]
        for (key, side), left in gone.items():
            kept = self.sides[side][key]
            assert isinstance(kept, list)
            left.sort()
            if kept[: len(left)] == left:
                del kept[: len(left)]
            else:
                lost = set(left)
                kept[:] = [row for row in kept if row not in lost]
            if not kept:
                del self.sides[side][key]

    def between(self, key: K, side: str, first: int, last: int) -> Sequence[Row[K]]:
        """Return the rows of a key and a side by timestamp and number; both timestamps are included."""
        kept = self.sides[side].get(key)
        if kept is None:
            return _NO_ROWS
        if isinstance(kept, tuple):
            return (kept,) if first <= kept[2] <= last else _NO_ROWS
        if kept[-1][2] < first:
            return _NO_ROWS
        if kept[0][2] >= first and kept[-1][2] <= last:
            return kept.copy()
        low: Any = (key, side, first)
        high: Any = (key, side, last + 1)
        return kept[bisect_left(kept, low) : bisect_left(kept, high)]
