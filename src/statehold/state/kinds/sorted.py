"""A table that keeps its keys in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from statehold.state.partition_table import PartitionTable

K = TypeVar("K")
V = TypeVar("V")


class SortedTable(PartitionTable[K, V]):
    """Keeps every stored key and every key of an open transaction in order."""

    _order: Any = None

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self._keys().add(key)

    def put(self, key: K, value: V) -> None:
        self[key] = value

    def commit(self) -> None:
        deleted = [key for key, value in self._frozen.items() if value is None]
        super().commit()
        self._forget(deleted)

    def rollback(self) -> None:
        written = [*self._frozen, *self._dirty]
        super().rollback()
        self._forget(written)

    def loaded(self) -> None:
        super().loaded()
        self._order = None

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.range())

    def range(self, low: K | None = None, high: K | None = None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        for key in list(self._keys().irange(low, high, inclusive=(True, False), reverse=reverse)):
            if key in self:
                yield key, self[key]

    def first(self) -> tuple[K, V] | None:
        return self._outermost(reverse=False)

    def last(self) -> tuple[K, V] | None:
        return self._outermost(reverse=True)

    def _outermost(self, *, reverse: bool) -> tuple[K, V] | None:
        return next(((key, self[key]) for key in self._keys().irange(reverse=reverse) if key in self), None)

    def _forget(self, keys: Iterable[K]) -> None:
        """Drop the keys that are neither stored nor written by an open transaction."""
        if self._order is not None:
            self._order.difference_update([key for key in keys if key not in self.stored and key not in self._dirty])

    def _keys(self) -> Any:
        if self._order is None:
            from sortedcontainers import SortedSet  # here, because it takes 0.03 s and few tables are sorted

            self._order = SortedSet(self.stored)
            self._order.update(self._frozen, self._dirty)
        return self._order
