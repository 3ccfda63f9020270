"""The rows of a `JoinBuffer`: found by key, side and time, and those of a segment of time, which leave at once."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Generic, TypeVar

from statehold.api.joins import LEFT, RIGHT, Row
from statehold.state.digest import hash128, seeds
from statehold.state.partition_table import Changes

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

    def leave(self, rows: list[Row[K]]) -> None:
        """Remove the rows of a segment: mostly each is the only one of its key and side."""
        for side, kept in self.sides.items():
            own = [row for row in rows if row[1] == side]
            found = list(map(kept.get, [row[0] for row in own]))
            if found != own:
                self.discard([row for row, there in zip(own, found, strict=True) if there is not row])
                own = [row for row, there in zip(own, found, strict=True) if there is row]
            deque(map(kept.pop, [row[0] for row in own]), 0)

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


@dataclass(slots=True)
class RowSegment(Generic[K]):
    """Committed rows of a segment of time."""

    rows: list[Row[K]] = field(default_factory=list)
    #: the sum of their hashes; None for rows of a restored state, until they leave
    digest: int | None = 0
    #: rows were deleted one by one, so the list may have rows that are gone, or some twice
    torn: bool = False


class RowSegments(Generic[K]):
    """The committed rows of a join by segment of time, each segment with its part of the digest. Not state."""

    __slots__ = ("_by_number", "_growth", "_span")

    def __init__(self, span: int, rows: Iterable[Row[K]]) -> None:
        """`span`: milliseconds of a segment; `rows`: those of a restored state."""
        self._span = span
        self._by_number: dict[int, RowSegment[K]] = {}
        #: what the changes that `effect` has seen last add to each segment
        self._growth: dict[int, RowSegment[K]] = {}
        for row in rows:
            number = row[2] // span
            segment = self._by_number.get(number)
            if segment is None:
                segment = self._by_number[number] = RowSegment(digest=None)
            segment.rows.append(row)

    def before(self, first: int) -> Iterator[tuple[int, RowSegment[K]]]:
        """Yield the segments before this one, and their numbers, in order."""
        return ((number, self._by_number[number]) for number in sorted(self._by_number) if number < first)

    def effect(self, changes: Changes, before: list[bytes | None]) -> tuple[int, int]:
        """Return as `PartitionTable.effect`, and note it for each segment until `apply`."""
        keys, values, self._growth = changes.keys, changes.values, {}
        key_seeds = list(seeds(changes.table, keys))
        plain = None not in values and before.count(None) == len(before)
        if plain:
            hashes = list(map(hash128, values, key_seeds))  # type: ignore[arg-type]
        else:
            hashes = [
                (0 if value is None else hash128(value, seed)) - (0 if was is None else hash128(was, seed))
                for value, was, seed in zip(values, before, key_seeds, strict=True)
            ]
        span, start, born = self._span, 0, len(keys)
        for number, group in groupby([row[2] // span for row in keys]):
            end = start + len(list(group))
            growth = self._growth.setdefault(number, RowSegment())
            growth.digest = growth.digest + sum(hashes[start:end])  # type: ignore[operator]  # it is known
            growth.rows += keys[start:end] if plain else _new(keys, values, before, start, end)
            growth.torn = growth.torn or (not plain and None in values[start:end])
            start = end
        if not plain:
            born = before.count(None) - values.count(None)
        return sum(hashes), born

    def apply(self) -> None:
        """Take over what `effect` has noted."""
        growths, self._growth = self._growth, {}
        for number, growth in growths.items():
            segment = self._by_number.setdefault(number, growth)
            if segment is not growth:
                segment.rows += growth.rows
                segment.torn = segment.torn or growth.torn
                if segment.digest is not None and growth.digest is not None:
                    segment.digest += growth.digest

    def forget(self) -> None:
        """Forget what `effect` has noted."""
        self._growth = {}

    def remove(self, number: int) -> None:
        del self._by_number[number]


def _new(keys: list[Any], values: list[bytes | None], before: list[bytes | None], start: int, end: int) -> list[Any]:
    """Return the rows from `start` to `end` that are stored now, and were not before."""
    return [keys[i] for i in range(start, end) if values[i] is not None and before[i] is None]
