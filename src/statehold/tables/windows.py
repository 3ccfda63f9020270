"""Windows of event time: tables whose rows close, and leave, when the partition's own time passes their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import GenericAlias
from typing import Any, Generic, TypeVar

from statehold import serde
from statehold.common import versioned_values
from statehold.common.table_types import require_key_type, require_ordered_key
from statehold.errors import UsageError
from statehold.record import Record
from statehold.table import Table
from statehold.tables.clock import ClockTable
from statehold.tables.due_index import DueTable
from statehold.tables.sorted import SortedTable
from statehold.tables.ttl import milliseconds

K = TypeVar("K")
V = TypeVar("V")
OnLate = Callable[[str, Any, Record[Any]], None]


class ClosingTable(Table[K, V]):
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

    def fresh(self, kinds: tuple[type[Table[Any, Any]], ...] = ()) -> Table[K, V]:
        return Table.fresh(self, (*kinds, type(self)) if kinds else ())

    def follow(self, clock: ClockTable, on_late: Callable[[], OnLate | None]) -> None:
        """Use this time. `on_late` is a weak reference to the handler's method."""
        self._clock, self._on_late = clock, on_late

    @property
    def _now(self) -> int:
        if self._clock is None:
            raise UsageError(f"this {type(self).__name__} is a declaration: use it as self.<name> in a handler")
        return self._clock.now

    def _pass_on(self, key: Any, record: Record[Any]) -> None:
        """Count a late record and hand it to the handler."""
        self.late += 1
        if (on_late := self._on_late()) is not None:
            on_late(self.name, key, record)

    def _span(self, what: str, given: float | timedelta, *, least: int) -> int:
        """Return milliseconds. :raises UsageError: they are below `least`."""
        span = milliseconds(given)
        if span < least:
            raise UsageError(f"{type(self).__name__}({what}={given!r}): it must be at least {least} milliseconds")
        return span


class Windows(DueTable[tuple[K, int, int], V], ClosingTable[tuple[K, int, int], V], Generic[K, V]):
    """The base of all windows: a table of open windows by (key, start, end), in milliseconds since 1970.

    A window includes its start and excludes its end. It closes when the partition's time reaches end + grace: its row
    is deleted, and `Handler.on_window` gets it. The end is part of the key, so a window that is open keeps it when you
    change the declaration.
    """

    def __init__(
        self,
        *,
        key: type[K],
        value: type[V] | serde.Serde[V],
        grace: float | timedelta,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        mutable: bool = False,
    ) -> None:
        require_key_type(key)
        require_ordered_key(key)
        self.grace = self._span("grace", grace, least=0)
        row_key: Any = GenericAlias(tuple, (key, int, int))
        super().__init__(key=row_key, value=value, mutable=mutable, version=version, upcasters=upcasters)

    def update(self, record: Record[Any], key: K, fn: Callable[[V | None], V]) -> None:
        """Set each window of this key and the record's timestamp to `fn(value)`; a new window begins with None.

        If one of them has closed, `Handler.on_late` is called, once, after the update of the others.
        """
        late = False
        for window in self._falls_into(key, record.timestamp):
            if self._has_closed(window):
                late = True
            else:
                self[window] = self._result(fn, self.get(window))
        if late:
            self._pass_on(key, record)

    def at(self, record: Record[Any], key: K) -> list[tuple[int, int, V]]:
        """Return the open windows that `update` would change, earliest first: (start, end, value)."""
        found = ((window, self.get(window)) for window in self._falls_into(key, record.timestamp))
        return [(window[1], window[2], value) for window, value in found if value is not None]

    def __setitem__(self, key: tuple[K, int, int], value: V) -> None:
        """Replace a window's value. :raises UsageError: the window has closed."""
        if self._has_closed(key):
            raise UsageError(f"{self.name}: window {key!r} has closed, and a window closes once")
        if key not in self:
            self._index.push(key[2] + self.grace, key)
            self.count += 1
        Table.__setitem__(self, key, value)

    def delete(self, key: tuple[K, int, int]) -> None:
        """Remove a window; on_window does not get it."""
        super().delete(key)
        if key not in self._frozen and key not in self.stored:
            self._dirty.pop(key, None)  # no commit has it, so no tombstone is needed

    # For the engine

    def fresh(self, kinds: tuple[type[Table[Any, Any]], ...] = ()) -> Table[tuple[K, int, int], V]:
        return ClosingTable.fresh(self, kinds)

    def due(self, key: tuple[K, int, int], value: V) -> int:
        return key[2] + self.grace

    def _entries(self) -> Iterator[tuple[int, tuple[K, int, int]]]:
        """Yield the entries of the keys; no value is decoded."""
        return ((key[2] + self.grace, key) for key in dict.fromkeys((*self.stored, *self._dirty)))

    def _falls_into(self, key: K, at: int) -> Iterator[tuple[K, int, int]]:
        """Yield the windows of a key at a time, earliest first."""
        raise NotImplementedError

    def _has_closed(self, window: tuple[K, int, int]) -> bool:
        return window[2] + self.grace <= self._now

    def _result(self, fn: Callable[[V | None], V], value: V | None) -> V:
        result = fn(value)
        if result is None:
            raise UsageError(f"{self.name}.update: the function returned None. Next: return the window's new value")
        return result


class Hopping(Windows[K, V]):
    """Declares windows of `size` that begin `every` so often, from 1970-01-01 UTC on (seconds, or timedeltas).

    A record falls into size / every windows. See `Tumbling`.
    """

    def __init__(
        self,
        size: float | timedelta,
        every: float | timedelta,
        *,
        key: type[K],
        value: type[V] | serde.Serde[V],
        grace: float | timedelta = 0,
        **options: Any,
    ) -> None:
        self.size, self.every = self._span("size", size, least=1), self._span("every", every, least=1)
        if self.every > self.size:
            raise UsageError(
                f"{type(self).__name__}(every={every!r}): it is longer than the size {size!r}, so records between two "
                f"windows would be lost"
            )
        super().__init__(key=key, value=value, grace=grace, **options)

    def _falls_into(self, key: K, at: int) -> Iterator[tuple[K, int, int]]:
        first = (at - self.size) // self.every * self.every + self.every
        return ((key, start, start + self.size) for start in range(first, at + 1, self.every))


class Tumbling(Hopping[K, V]):
    """Declares windows of `size` (seconds, or a timedelta), one after the other, from 1970-01-01 UTC on.

        candles = Tumbling(timedelta(minutes=1), grace=timedelta(seconds=5), key=str, value=Candle)

        def on_record(self, record):
            self.candles.update(record, record.value.symbol, lambda candle: with_trade(candle, record.value))

        def on_window(self, name, key, start, end, value):
            self.closed.send(value, key=key)

    `grace` is how long a window stays open for late records. `key` has an order: str, int, bytes or a tuple of them.
    `value`, `version`, `upcasters` and `mutable` are as for a `Table`.
    """

    def __init__(
        self,
        size: float | timedelta,
        *,
        key: type[K],
        value: type[V] | serde.Serde[V],
        grace: float | timedelta = 0,
        **options: Any,
    ) -> None:
        super().__init__(size, size, key=key, value=value, grace=grace, **options)


class Session(SortedTable[tuple[K, int, int], V], Windows[K, V]):
    """Declares windows that end when no record has come for `gap` (seconds, or a timedelta); see `Tumbling`.

    A session is from its first record to `gap` after its last one. `merge(earlier, later)` combines the values of two
    sessions when a record bridges them.
    """

    def __init__(
        self,
        gap: float | timedelta,
        *,
        key: type[K],
        value: type[V] | serde.Serde[V],
        merge: Callable[[V, V], V],
        grace: float | timedelta = 0,
        **options: Any,
    ) -> None:
        self.gap, self.merge = self._span("gap", gap, least=1), merge
        super().__init__(key=key, value=value, grace=grace, **options)

    def update(self, record: Record[Any], key: K, fn: Callable[[V | None], V]) -> None:
        at = record.timestamp
        joined = list(self._falls_into(key, at))
        start = min([at, *(each[1] for each in joined)])
        session = key, start, max([at + self.gap, *(each[2] for each in joined)])
        if self._has_closed(session):
            self._pass_on(key, record)
            return
        value = None
        for each in joined:
            value = self[each] if value is None else self.merge(value, self[each])
            if each != session:
                self.delete(each)
        self[session] = self._result(fn, value)

    def delete(self, key: tuple[K, int, int]) -> None:
        super().delete(key)
        if key not in self._frozen and key not in self.stored:
            self._keys().discard(key)

    def _falls_into(self, key: K, at: int) -> Iterator[tuple[K, int, int]]:
        # Sessions of a key are disjoint, so those that end after `at` are the last ones that begin before the gap ends.
        found: list[tuple[K, int, int]] = []
        low: Any = (key,)
        high: Any = (key, at + self.gap)
        for window in self._keys().irange(low, high, inclusive=(True, False), reverse=True):
            if window in self:
                if window[2] <= at:
                    break
                found.append(window)
        return reversed(found)
