"""Tables whose rows have a due time, and the index that finds the first due key without a scan."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, TypeVar

from statehold.state.kinds.clock import Horizon
from statehold.state.partition_table import Changes, PartitionTable

K = TypeVar("K")
V = TypeVar("V")

#: entries in an index beyond two for each key before it is rebuilt
_SLACK: Final = 10_000


class DueIndex(Generic[K]):
    """Entries of (due time, key), with one for every key that is not later than its due time.

    The index therefore need not follow every write: a postponed key is checked again at its old time. A rollback
    returns the entries that were taken. The index is not state, because a restore builds it from the table.
    """

    __slots__ = ("_closing", "_heap", "_run", "_taken")

    def __init__(self, entries: Iterable[tuple[int, K]] = ()) -> None:
        self._heap: list[tuple[int, Any]] = list(entries)
        heapify(self._heap)
        #: entries that came in order, because a heap of many costs microseconds for each
        self._run: deque[tuple[int, Any]] = deque()
        #: entries taken by the open transaction, and by the one that is being committed
        self._taken: list[tuple[int, Any]] = []
        self._closing: list[tuple[int, Any]] = []

    def __len__(self) -> int:
        return len(self._heap) + len(self._run)

    @property
    def earliest(self) -> float:
        """The earliest possible due time; infinity for an empty index."""
        run, heap = self._run, self._heap
        if heap:
            first: float = heap[0][0]
            return run[0][0] if run and run[0][0] < first else first
        return run[0][0] if run else math.inf

    @property
    def known(self) -> float:
        """`earliest` for other threads: nothing is read or changed for it."""
        return self.earliest

    def push(self, when: int, key: K) -> None:
        entry, run = (when, key), self._run
        if not run or run[-1] < entry:
            run.append(entry)
        else:
            heappush(self._heap, entry)

    def has_due(self, until: float, due: Callable[[K], int | None]) -> bool:
        """Return whether a key is due at or before `until`; take entries of keys that were deleted or postponed.

        `due` returns a key's due time, or None.
        """
        while (entry := self._first(until)) is not None:
            when, key = entry
            wanted = due(key)
            if wanted == when:
                return True
            self._pop(entry)
            self._taken.append(entry)
            if wanted is not None:
                heappush(self._heap, (wanted, key))
        return False

    def take(self, until: float, due: Callable[[K], int | None]) -> K | None:
        """Remove and return the first due key if it is due at or before `until`.

        Of keys with the same due time the smallest comes first, whatever the history of the heap.
        """
        while (entry := self._first(until)) is not None:
            self._pop(entry)
            self._taken.append(entry)
            when = due(entry[1])
            if when == entry[0]:
                key: K = entry[1]
                return key
            if when is not None:
                heappush(self._heap, (when, entry[1]))
        return None

    def pop(self, until: float) -> K | None:
        """Remove and return the first key if it is due at or before `until`, of keys that are never postponed."""
        run = self._run
        if run and not self._heap:  # mostly they came in order
            if run[0][0] > until:
                return None
            entry = run.popleft()
        else:
            found = self._first(until)
            if found is None:
                return None
            self._pop(found)
            entry = found
        self._taken.append(entry)
        key: K = entry[1]
        return key

    def _first(self, until: float) -> tuple[int, Any] | None:
        """Return the first entry if it is due at or before `until`."""
        run, heap = self._run, self._heap
        if run and (not heap or run[0] <= heap[0]):
            return run[0] if run[0][0] <= until else None
        return heap[0] if heap and heap[0][0] <= until else None

    def _pop(self, entry: tuple[int, Any]) -> None:
        """Remove the first entry, and its duplicates."""
        run, heap = self._run, self._heap
        if run and run[0] == entry:
            run.popleft()
        while heap and heap[0] == entry:
            heappop(heap)

    def freeze(self) -> None:
        self._closing, self._taken = self._taken, []

    def commit(self) -> None:
        self._closing = []

    def rollback(self) -> None:
        for entry in (*self._closing, *self._taken):
            heappush(self._heap, entry)
        self._closing, self._taken = [], []

    def is_long(self, rows: int) -> bool:
        """Return whether most entries are old, so that the index of this number of rows is to be rebuilt."""
        return len(self) > 2 * rows + _SLACK


class DueTable(PartitionTable[K, V]):
    """A table of which each row has a due time."""

    #: set by the engine: a row that is due before it lowers it
    horizon = Horizon()

    def _empty(self) -> None:
        super()._empty()
        self._index: DueIndex[K] = DueIndex()
        #: number of keys, because `len` would count the open writes each time
        self.count = 0

    def due(self, key: K, value: V) -> int:
        """Return when a row is due, in milliseconds since 1970."""
        when: int = value  # type: ignore[assignment]
        return when

    @property
    def earliest(self) -> float:
        """The earliest possible due time; infinity for an empty table."""
        return self._index.earliest

    @property
    def known(self) -> float:
        """`earliest` for other threads; of a table on disk as its own thread has last seen it."""
        return self._index.known

    def has_due(self, until: float) -> bool:
        """Return whether a key is due at or before `until`; see `DueIndex.has_due`."""
        return self._index.has_due(until, self._due_of)

    def take(self, until: float) -> K | None:
        """Return the first due key if it is due at or before `until`. The caller deletes it."""
        return self._index.take(until, self._due_of)

    def __setitem__(self, key: K, value: V) -> None:
        before = self.get(key)
        super().__setitem__(key, value)
        self.count += before is None
        when = self.due(key, value)
        if before is None or when < self.due(key, before):
            self._push(when, key)

    def _push(self, when: int, key: K) -> None:
        self._index.push(when, key)
        self.horizon.at = min(self.horizon.at, when)

    def put(self, key: K, value: V) -> None:
        self[key] = value

    def delete(self, key: K) -> None:
        self.count -= key in self
        super().delete(key)

    def freeze(self) -> Changes:
        changes = super().freeze()
        self._index.freeze()
        return changes

    def commit(self) -> None:
        super().commit()
        self._index.commit()
        if self._index.is_long(len(self.stored)):
            self._index = DueIndex(self._entries())

    def rollback(self) -> None:
        super().rollback()
        self._index.rollback()
        self.count = len(self.stored)

    def loaded(self) -> None:
        super().loaded()
        self._index = DueIndex(self._entries())
        self.count = len(self.stored)

    def _due_of(self, key: K) -> int | None:
        value = self.get(key)
        return None if value is None else self.due(key, value)

    def _entries(self) -> Iterator[tuple[int, K]]:
        """Yield the entries of committed and open values, because a rollback needs both."""
        decoded, due = self.decoded, self.due
        yield from ((due(key, decoded(key, data)), key) for key, data in self.stored.items())
        yield from ((due(key, value), key) for key in self._dirty if (value := self.get(key)) is not None)
