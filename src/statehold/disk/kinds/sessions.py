"""Sessions on disk: those of a key are found by the order of the files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from statehold.disk.dated import DueDiskTable
from statehold.disk.tables import SortedDiskTable
from statehold.state.kinds.windows import SessionTable, WindowTable

K = TypeVar("K")
V = TypeVar("V")


class SessionDiskTable(SessionTable[K, V], DueDiskTable[tuple[K, int, int], V], SortedDiskTable[tuple[K, int, int], V]):
    """`SessionTable` with its rows and the index of what is due in the files."""

    def __setitem__(self, key: tuple[K, int, int], value: V) -> None:
        WindowTable.__setitem__(self, key, value)
        if self._order is not None:
            self._order.add(key)

    def _falls_into(self, key: K, at: int) -> Iterable[tuple[K, int, int]]:
        # As in memory: the last sessions that begin before the gap ends.
        found: list[tuple[K, int, int]] = []
        low: Any = (key,)
        high: Any = (key, at + self._gap)
        above = list(self._keys().irange(low, high, inclusive=(True, False), reverse=True))
        for window in self.stored.between(low, high, above, reverse=True):
            if window in self:
                if window[2] <= at:
                    break
                found.append(window)
        return reversed(found)
