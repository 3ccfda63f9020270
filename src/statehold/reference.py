"""Reference data: a read-only table from a compacted topic, shared by all partitions of a process.

The process has one copy of the rows. A partition reads them at its *version*, the next offset of each partition of the
topic, and switches to a newer version only between transactions. Its view stores the old values of later changes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, overload

from statehold import serde
from statehold.common.declarations import declarations, once_per_class
from statehold.errors import RegistryUnreachable, UsageError

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

#: Next offset of each partition of a reference topic.
Version = tuple[int, ...]

_KEYS: Final[Mapping[Any, Any]] = {str: bytes.decode, bytes: bytes, int: int}
_UNREAD: Final[Any] = object()


class ReferenceRow:
    """One value, which the first partition that reads it decodes."""

    __slots__ = ("data", "value")

    def __init__(self, data: bytes) -> None:
        self.data, self.value = data, _UNREAD


Rows = dict[Any, ReferenceRow]
#: A key and its new value; None if it was deleted.
Change = tuple[Any, bytes | None]


class Reference(Generic[K, V]):
    """Declares reference data of a `Handler`: the newest value of each key of a compacted topic. Read-only.

        prices = Reference("prices", key=str, value=Price)

        def on_record(self, record):
            price = self.prices.get(record.value.symbol)

    `key` is str (UTF-8), int (decimal digits) or bytes; `value` is a type or serde as for an output. Partitions share
    values, so use immutable types. A transaction reads one version, which its commit record stores. Use it on the
    partition's thread only. See docs/how-to/write/reference-data.md.

    :raises UsageError: the key type is not supported.
    """

    def __init__(self, topic: str, *, key: type[K], value: type[V] | serde.Serde[V]) -> None:
        if key not in _KEYS:
            raise UsageError(f"Reference({topic!r}): key must be str, int or bytes")
        self.topic, self.key_type, self.value_type = topic, key, value
        self.decode_key = _KEYS[key]
        self._decode = serde.for_messages(value, topic).decode
        self._rows: Rows | None = None
        #: Rows at `version` that later versions changed; None if the key did not exist.
        self._before: dict[Any, ReferenceRow | None] = {}
        self._shared: SharedRows | None = None
        #: The version that this view shows.
        self.version: Version = ()

    def bind(self, shared: SharedRows) -> Reference[K, V]:
        """Return the view of one partition, at the newest version."""
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
        """Iterate over every key, in no particular order."""
        known = [*self._known(), *self._before]
        return (key for key in dict.fromkeys(known) if self._row(key) is not None)

    def items(self) -> Iterator[tuple[K, V]]:
        return ((key, self[key]) for key in self)

    # The partition's side

    def renew(self) -> None:
        """Switch to the newest version; call it between transactions."""
        shared = self._shared
        assert shared is not None
        if self.version != shared.version or self._rows is not shared.rows:
            with shared.lock:
                self._rows, self._before, self.version = shared.rows, {}, shared.version

    def go_back(self, rows: Rows, version: Version) -> None:
        """Show these rows until `renew`, because a replay must read the values of that time."""
        assert self._shared is not None
        with self._shared.lock:  # because the feed's thread stores old values for the shown rows
            self._rows, self._before, self.version = rows, {}, version

    def note(self, changes: Iterable[Change], rows: Rows) -> None:
        """Store the old values of these keys before the feed changes `rows`. Feed's thread."""
        if self._rows is rows:
            for key, _ in changes:
                self._before.setdefault(key, rows.get(key))

    def _row(self, key: Any) -> ReferenceRow | None:
        # Read the row first, because the feed stores the old value before it changes the row.
        row = self._known().get(key)
        return self._before.get(key, row) if self._before else row

    def _value(self, row: ReferenceRow) -> Any:
        if row.value is _UNREAD:
            try:
                row.value = self._decode(row.data)
            except RegistryUnreachable:
                raise  # the registry is at fault, not the value
            except Exception as error:
                raise ValueError(f"{self.topic}: decode a value of the reference topic: {error}") from error
        return row.value

    def _known(self) -> Rows:
        if self._rows is None:
            raise UsageError("this Reference is a declaration: use it as self.<name> in a handler that a service runs")
        return self._rows


class SharedRows:
    """The rows of one topic in this process. Only the feed's thread calls `advance`."""

    def __init__(self, partitions: int) -> None:
        self.rows: Rows = {}
        self.version: Version = (0,) * partitions
        self.lock = threading.Lock()
        self._views: weakref.WeakSet[Reference[Any, Any]] = weakref.WeakSet()

    def watch(self, view: Reference[Any, Any]) -> None:
        """Add a view. It keeps its version until it renews."""
        with self.lock:
            self._views.add(view)
        view.renew()

    def advance(self, changes: Sequence[Change], version: Version) -> None:
        """Apply the changes of the next version. Views keep showing theirs until they renew."""
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
            rows[key] = ReferenceRow(data)


@once_per_class
def references(kind: type[Any]) -> dict[str, Reference[Any, Any]]:
    """Return the references that a handler class declares, by attribute name, base classes first."""
    found = declarations(kind, Reference)
    if len({reference.topic for reference in found.values()}) < len(found):
        raise UsageError(f"{kind.__name__} declares two references of one topic. Next: use one of them for both")
    return found
