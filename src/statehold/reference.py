"""Reference data: a read-only table from a compacted topic, the same for all partitions of a process.

There is one copy of the rows. A partition sees them as of its *version* (the next offset of each partition of the
topic), which it moves itself, at the begin of a transaction: what changed since then is kept beside them, for its view.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, overload

from statehold import serde
from statehold.common.declarations import declarations
from statehold.errors import RegistryUnreachable, UsageError

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

#: the next offset of each partition of a reference topic
Version = tuple[int, ...]

_KEYS: Final[Mapping[Any, Any]] = {str: bytes.decode, bytes: bytes, int: int}
_UNREAD: Final[Any] = object()


class Row:
    """One value; decoded when it is first read, by whichever partition reads it."""

    __slots__ = ("data", "value")

    def __init__(self, data: bytes) -> None:
        self.data, self.value = data, _UNREAD


Rows = dict[Any, Row]
#: a key and its new value, None where it was deleted
Change = tuple[Any, bytes | None]


class Reference(Generic[K, V]):
    """Declares reference data of a `Handler`: the newest value of each key of a compacted topic. Read-only.

        prices = Reference("prices", key=str, value=Price)

        def on_record(self, record):
            price = self.prices.get(record.value.symbol)

    `key` is str (UTF-8), int (decimal digits) or bytes, as the topic's records have it; `value` as an output's. Values
    are shared between partitions: use immutable types. All that a transaction reads is of one version, which its mark
    names; a newer one is taken with the next transaction. See docs/reference.md.
    """

    def __init__(self, topic: str, *, key: type[K], value: type[V] | serde.Serde[V]) -> None:
        if key not in _KEYS:
            raise UsageError(f"Reference({topic!r}): key is str, int or bytes")
        self.topic, self.key_type, self.value_type = topic, key, value
        self.decode_key = _KEYS[key]
        self._decode = serde.for_messages(value, topic).decode
        self._rows: Rows | None = None
        #: what other versions have changed since `version`: the row as it was, None where there was none
        self._before: dict[Any, Row | None] = {}
        self._shared: SharedRows | None = None
        #: what it shows
        self.version: Version = ()

    def bind(self, shared: SharedRows) -> Reference[K, V]:
        """This reference for one partition, at the newest version."""
        bound = Reference(self.topic, key=self.key_type, value=self.value_type)
        bound._shared = shared
        shared.watch(bound)
        return bound

    # The handler's side

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: V | D) -> V | D: ...

    def get(self, key: K, default: Any = None) -> Any:
        row = self._row(key)
        return default if row is None else self._value(row)

    def __getitem__(self, key: K) -> V:
        row = self._row(key)
        if row is None:
            raise KeyError(key)
        value: V = self._value(row)
        return value

    def __contains__(self, key: object) -> bool:
        return self._row(key) is not None

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[K]:
        """The keys, in no promised order. It walks over all of them."""
        known = [*self._known(), *self._before]
        return (key for key in dict.fromkeys(known) if self._row(key) is not None)

    def items(self) -> Iterator[tuple[K, V]]:
        return ((key, self[key]) for key in self)

    # The partition's side

    def renew(self) -> None:
        """Show the newest version from now on; between two transactions."""
        shared = self._shared
        assert shared is not None
        if self.version != shared.version or self._rows is not shared.rows:
            with shared.lock:
                self._rows, self._before, self.version = shared.rows, {}, shared.version

    def go_back(self, rows: Rows, version: Version) -> None:
        """Show these rows until `renew`: a replay sees what was seen then."""
        assert self._shared is not None
        with self._shared.lock:  # or the feed would go on noting for the rows that were shown before
            self._rows, self._before, self.version = rows, {}, version

    def note(self, changes: Iterable[Change], rows: Rows) -> None:
        """The feed's thread, before it changes these rows."""
        if self._rows is rows:
            for key, _ in changes:
                self._before.setdefault(key, rows.get(key))

    def _row(self, key: Any) -> Row | None:
        # In this order: whoever changes a row has noted the one before first.
        row = self._known().get(key)
        return self._before.get(key, row) if self._before else row

    def _value(self, row: Row) -> Any:
        if row.value is _UNREAD:
            try:
                row.value = self._decode(row.data)
            except RegistryUnreachable:
                raise  # no fault of the value
            except Exception as error:
                raise ValueError(f"a value of the reference topic {self.topic} cannot be decoded: {error}") from error
        return row.value

    def _known(self) -> Rows:
        if self._rows is None:
            raise UsageError("this Reference is a declaration: use it as self.<name> in a handler that a service runs")
        return self._rows


class SharedRows:
    """The rows of one topic in this process. `advance` belongs to the feed's thread, the rest to any."""

    def __init__(self, partitions: int) -> None:
        self.rows: Rows = {}
        self.version: Version = (0,) * partitions
        self.lock = threading.Lock()
        self._views: weakref.WeakSet[Reference[Any, Any]] = weakref.WeakSet()

    def watch(self, view: Reference[Any, Any]) -> None:
        """As long as it lives it keeps its version."""
        with self.lock:
            self._views.add(view)
        view.renew()

    def advance(self, changes: Sequence[Change], version: Version) -> None:
        """The next version: whoever has not renewed goes on seeing the one before."""
        with self.lock:
            for view in self._views:
                view.note(changes, self.rows)
            put(self.rows, changes)
            self.version = version


def put(rows: Rows, changes: Iterable[Change]) -> None:
    for key, data in changes:
        if data is None:
            rows.pop(key, None)
        else:
            rows[key] = Row(data)


def references(kind: type[Any]) -> dict[str, Reference[Any, Any]]:
    """The references that a handler class declares, by attribute name, base classes first."""
    found = declarations(kind, Reference)
    if len({reference.topic for reference in found.values()}) < len(found):
        raise UsageError(f"{kind.__name__} declares two references of one topic: use one, it is one table")
    return found
