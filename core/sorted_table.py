"""A table that also knows its keys in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from sortedcontainers import SortedSet

from holdfast.table import Table

K = TypeVar("K")
V = TypeVar("V")


class SortedTable(Table[K, V]):
    """Keeps every key that was ever put or loaded, in order, and drops those that are gone when it passes them."""

    _order: Any = None

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self._keys().add(key)

    def put(self, key: K, value: V) -> None:
        self[key] = value

    def apply(self, keys: list[K], values: list[bytes | None]) -> None:
        super().apply(keys, values)
        self._order = None if len(keys) > len(self._keys()) else self._keys()
        self._keys().update(keys)

    def loaded(self) -> None:
        super().loaded()
        self._order = None

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.range())

    def range(self, low: K | None = None, high: K | None = None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        for key in list(self._keys().irange(low, high, inclusive=(True, False), reverse=reverse)):
            if key in self:
                yield key, self[key]
            elif self._is_nowhere(key):
                self._keys().discard(key)

    def first(self) -> tuple[K, V] | None:
        return self._outermost(reverse=False)

    def last(self) -> tuple[K, V] | None:
        return self._outermost(reverse=True)

    def _outermost(self, *, reverse: bool) -> tuple[K, V] | None:
        passed: list[K] = []
        found = None
        for key in self._keys().irange(reverse=reverse):
            if key in self:
                found = key, self[key]
                break
            passed.append(key)
        self._keys().difference_update(filter(self._is_nowhere, passed))
        return found

    def _is_nowhere(self, key: K) -> bool:
        """Not even in what a rollback would bring back."""
        return key not in self.stored and key not in self._frozen and key not in self._dirty

    def _keys(self) -> Any:
        if self._order is None:
            self._order = SortedSet(self.stored)
            self._order.update(self._frozen, self._dirty)
        return self._order
