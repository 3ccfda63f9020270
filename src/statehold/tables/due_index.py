"""A table whose values fall due: it finds the key that is due first without looking at the others."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVar

from statehold.table import Changes, Table

K = TypeVar("K")
V = TypeVar("V")

#: entries that may be in the heap beyond two for each key
_SLACK: Final = 10_000


class DueTable(Table[K, V]):
    """A heap of (when, key) beside the table, for every key one entry that is not later than it is due.

    So the heap need not follow every write: a key that is put off is looked at once more when its old time comes. What
    is taken from it goes back with a rollback. It is no state: a restore builds it from the values.
    """

    def __init__(self, *, key: type[K], value: type[V]) -> None:
        super().__init__(key=key, value=value)
        self._heap: list[tuple[int, Any]] = []
        #: taken from the heap by the open transaction, and by the one that is being committed
        self._taken: list[tuple[int, Any]] = []
        self._closing: list[tuple[int, Any]] = []
        #: keys there are; `len` would count the open writes anew
        self.count = 0

    def due(self, value: V) -> int:
        """When it is due, in milliseconds since 1970."""
        when: int = value  # type: ignore[assignment]
        return when

    def _copy(self, kinds: tuple[type[Table[Any, Any]], ...]) -> DueTable[K, V]:
        """Ignore the kinds: the values are immutable, so there is nothing to trace."""
        return DueTable(key=self.key_type, value=self.value_type)

    @property
    def earliest(self) -> float:
        """Nothing is due before this; infinity for an empty table."""
        return self._heap[0][0] if self._heap else math.inf

    def take(self, until: float) -> K | None:
        """The key that is due first, if that is at or before `until`; the caller deletes it.

        Of keys that are due at once the smallest comes first, whatever the heap has gone through.
        """
        heap = self._heap
        while heap and heap[0][0] <= until:
            entry = heappop(heap)
            self._taken.append(entry)
            while heap and heap[0] == entry:
                heappop(heap)
            value = self.get(entry[1])
            if value is None:
                continue
            when = self.due(value)
            if when == entry[0]:
                key: K = entry[1]
                return key
            heappush(heap, (when, entry[1]))
        return None

    def __setitem__(self, key: K, value: V) -> None:
        before = self.get(key)
        super().__setitem__(key, value)
        self.count += before is None
        when = self.due(value)
        if before is None or when < self.due(before):
            heappush(self._heap, (when, key))

    def put(self, key: K, value: V) -> None:
        self[key] = value

    def delete(self, key: K) -> None:
        self.count -= key in self
        super().delete(key)

    def freeze(self) -> Changes:
        changes = super().freeze()
        self._closing, self._taken = self._taken, []
        return changes

    def commit(self) -> None:
        super().commit()
        self._closing = []
        if len(self._heap) > 2 * len(self.stored) + _SLACK:
            self._build()

    def rollback(self) -> None:
        super().rollback()
        for entry in (*self._closing, *self._taken):
            heappush(self._heap, entry)
        self._closing, self._taken = [], []
        self.count = len(self.stored)

    def loaded(self) -> None:
        super().loaded()
        self._build()
        self.count = len(self.stored)

    def _build(self) -> None:
        """From what is committed, and what the open transaction has put: a rollback needs both."""
        decode, due = self._serde.decode, self.due
        self._heap = [(due(decode(data)), key) for key, data in self.stored.items()]
        self._heap += [(due(value), key) for key in self._dirty if (value := self.get(key)) is not None]
        heapify(self._heap)
