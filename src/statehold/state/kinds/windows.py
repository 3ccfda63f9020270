"""Windows of event time: tables whose rows close, and leave, when the partition's own time passes their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from statehold.api.record import Record
from statehold.api.windows import Windows, window_options
from statehold.errors import UsageError
from statehold.state.kinds.clock import ClockTable
from statehold.state.kinds.due_index import DueTable
from statehold.state.kinds.sorted import SortedTable
from statehold.state.partition_table import PartitionTable

K = TypeVar("K")
V = TypeVar("V")
OnLate = Callable[[str, Any, Record[Any, Any]], None]


class ClosingTable(PartitionTable[K, V]):
    """The base of tables whose rows close by the partition's time; a record that comes after that is late."""

    #: milliseconds that a row stays open for late records
    grace: int
    #: late records since the last commit
    late = 0
    #: set by the engine; a tool that only reads states has no time
    _clock: ClockTable | None = None
    _on_late: Callable[[], OnLate | None]

    @property
    def earliest(self) -> float:
        """The earliest possible time at which a row closes that the handler gets; infinity without one."""
        raise NotImplementedError

    def take(self, until: float) -> K | None:
        """Return the first of these rows if it closes at or before `until`. The caller deletes it."""
        raise NotImplementedError

    def follow(self, clock: ClockTable, on_late: Callable[[], OnLate | None]) -> None:
        """Use this time. `on_late` is a weak reference to the handler's method."""
        self._clock, self._on_late = clock, on_late

    @property
    def _now(self) -> int:
        assert self._clock is not None
        return self._clock.now

    def _pass_on(self, key: Any, record: Record[Any, Any]) -> None:
        """Count a late record and hand it to the handler."""
        self.late += 1
        if (on_late := self._on_late()) is not None:
            on_late(self.name, key, record)


class WindowTable(DueTable[tuple[K, int, int], V], ClosingTable[tuple[K, int, int], V], Windows[K, V], Generic[K, V]):
    """The base of all windows: open windows by (key, start, end)."""

    def __init__(self, declaration: Windows[K, V]) -> None:
        super().__init__(declaration)
        self._windows = window_options(declaration)
        self.grace = self._windows.grace

    def update(self, record: Record[Any, Any], key: K, fn: Callable[[V | None], V]) -> None:
        assert self._clock is not None
        late, closed = False, self._clock.now - self.grace
        for window in self._falls_into(key, record.message.timestamp()[1]):
            if window[2] <= closed:
                late = True
                continue
            if (value := fn(self.get(window))) is None:
                raise self._no_result()
            if window in self._cache:  # it exists, and its due time does not change
                self._replace(window, value)
            else:
                self[window] = value
        if late:
            self._pass_on(key, record)

    def at(self, record: Record[Any, Any], key: K) -> list[tuple[int, int, V]]:
        found = ((window, self.get(window)) for window in self._falls_into(key, record.timestamp))
        return [(window[1], window[2], value) for window, value in found if value is not None]

    def __setitem__(self, key: tuple[K, int, int], value: V) -> None:
        if key[2] + self.grace <= self._now:
            raise UsageError(f"{self.name}: window {key!r} has closed, and a window closes once")
        if key not in self:
            self._push(key[2] + self.grace, key)
            self.count += 1
        PartitionTable.__setitem__(self, key, value)

    def delete(self, key: tuple[K, int, int]) -> None:
        super().delete(key)
        if key not in self._frozen and key not in self.stored:
            self._dirty.pop(key, None)  # no commit has it, so no tombstone is needed

    # For the engine

    def due(self, key: tuple[K, int, int], value: V) -> int:
        return key[2] + self.grace

    def _entries(self) -> Iterator[tuple[int, tuple[K, int, int]]]:
        """Yield the entries of the keys; no value is decoded."""
        return ((key[2] + self.grace, key) for key in dict.fromkeys((*self.stored, *self._dirty)))

    def _falls_into(self, key: K, at: int) -> Iterable[tuple[K, int, int]]:
        """Return the windows of a key at a time, earliest first."""
        raise NotImplementedError

    def _has_closed(self, window: tuple[K, int, int]) -> bool:
        return window[2] + self.grace <= self._now

    def _no_result(self) -> UsageError:
        return UsageError(f"{self.name}.update: the function returned None. Next: return the window's new value")


class HoppingTable(WindowTable[K, V]):
    """Windows of one size, one after the other or overlapping."""

    def __init__(self, declaration: Windows[K, V]) -> None:
        super().__init__(declaration)
        self._size, self._every = self._windows.size, self._windows.every

    def _falls_into(self, key: K, at: int) -> Iterable[tuple[K, int, int]]:
        size, every = self._size, self._every
        if size == every:
            start = at - at % size
            return ((key, start, start + size),)
        first = (at - size) // every * every + every
        return ((key, start, start + size) for start in range(first, at + 1, every))


class SessionTable(SortedTable[tuple[K, int, int], V], WindowTable[K, V]):
    """Sessions; those of a key are disjoint."""

    def __init__(self, declaration: Windows[K, V]) -> None:
        super().__init__(declaration)
        assert self._windows.merge is not None
        self._gap, self._merge = self._windows.gap, self._windows.merge

    def update(self, record: Record[Any, Any], key: K, fn: Callable[[V | None], V]) -> None:
        at = record.timestamp
        joined = list(self._falls_into(key, at))
        start = min([at, *(each[1] for each in joined)])
        session = key, start, max([at + self._gap, *(each[2] for each in joined)])
        if self._has_closed(session):
            self._pass_on(key, record)
            return
        value = None
        for each in joined:
            value = self[each] if value is None else self._merge(value, self[each])
            if each != session:
                self.delete(each)
        if (result := fn(value)) is None:
            raise self._no_result()
        self[session] = result

    def delete(self, key: tuple[K, int, int]) -> None:
        super().delete(key)
        if key not in self._frozen and key not in self.stored:
            self._keys().discard(key)

    def _falls_into(self, key: K, at: int) -> Iterable[tuple[K, int, int]]:
        # Sessions of a key are disjoint, so those that end after `at` are the last ones that begin before the gap ends.
        found: list[tuple[K, int, int]] = []
        low: Any = (key,)
        high: Any = (key, at + self._gap)
        for window in self._keys().irange(low, high, inclusive=(True, False), reverse=True):
            if window in self:
                if window[2] <= at:
                    break
                found.append(window)
        return reversed(found)
