"""A table of values with a due time, which finds the first due key without a scan."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeVar

from statehold import serde
from statehold.common.table_types import require_ordered_key
from statehold.table import Changes, Table

K = TypeVar("K")
V = TypeVar("V")

#: entries in the heap beyond two for each key before it is rebuilt
_SLACK: Final = 10_000


class DueTable(Table[K, V]):
    """A table with a heap of (due time, key) that has for every key an entry not later than its due time.

    The heap therefore need not follow every write: a postponed key is checked again at its old time. A rollback returns
    the entries that were taken. The heap is not state, because a restore builds it from the values.
    """

    def __init__(self, *, key: type[K], value: type[V] | serde.Serde[V], mutable: bool = True, **options: Any) -> None:
        # Mutable by default, because a handler is given no value but a fired timer.
        super().__init__(key=key, value=value, mutable=mutable, **options)
        require_ordered_key(key)

    def _empty(self) -> None:
        super()._empty()
        self._heap: list[tuple[int, Any]] = []
        #: entries taken by the open transaction, and by the one that is being committed
        self._taken: list[tuple[int, Any]] = []
        self._closing: list[tuple[int, Any]] = []
        #: number of keys, because `len` would count the open writes each time
        self.count = 0

    def due(self, key: K, value: V) -> int:
        """Return when a row is due, in milliseconds since 1970."""
        when: int = value  # type: ignore[assignment]
        return when

    def fresh(self, kinds: tuple[type[Table[Any, Any]], ...] = ()) -> Table[K, V]:
        """Ignore the kinds: the values are immutable, so there is nothing to trace."""
        return super().fresh()

    @property
    def earliest(self) -> float:
        """The earliest possible due time; infinity for an empty table."""
        return self._heap[0][0] if self._heap else math.inf

    def has_due(self, until: float) -> bool:
        """Return whether a key is due at or before `until`; drop entries of keys that were deleted or postponed.

        With open writes an entry counts as a due key, because a rollback may need it.
        """
        heap, is_open = self._heap, bool(self._dirty or self._frozen)
        while heap and heap[0][0] <= until:
            when, key = heap[0]
            value = self.get(key)
            due = None if value is None else self.due(key, value)
            if is_open or due == when:
                return True
            heappop(heap)
            if due is not None:
                heappush(heap, (due, key))
        return False

    def take(self, until: float) -> K | None:
        """Return the first due key if it is due at or before `until`. The caller deletes it.

        Of keys with the same due time the smallest comes first, whatever the history of the heap.
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
            when = self.due(entry[1], value)
            if when == entry[0]:
                key: K = entry[1]
                return key
            heappush(heap, (when, entry[1]))
        return None

    def __setitem__(self, key: K, value: V) -> None:
        before = self.get(key)
        super().__setitem__(key, value)
        self.count += before is None
        when = self.due(key, value)
        if before is None or when < self.due(key, before):
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
        """Build the heap from committed and open values, because a rollback needs both."""
        decode, due = self._serde.decode, self.due
        self._heap = [(due(key, decode(data)), key) for key, data in self.stored.items()]
        self._heap += [(due(key, value), key) for key in self._dirty if (value := self.get(key)) is not None]
        heapify(self._heap)
