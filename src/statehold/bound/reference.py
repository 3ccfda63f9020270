"""Reference data: a read-only table from a compacted topic, shared by all partitions of a process.

The process has one copy of the rows. A partition reads them at its *version*, the next offset of each partition of the
topic, and switches to a newer version only between transactions. Its view stores the old values of later changes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar, overload

from statehold.api.declaration import options_of
from statehold.api.reference import Reference, ReferenceOptions
from statehold.api.values import serde
from statehold.common.class_body import class_attributes, once_per_class
from statehold.errors import RegistryUnreachable, UsageError, text_of

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

#: Next offset of each partition of a reference topic.
Version = tuple[int, ...]

_UNREAD: Final[Any] = object()


class ReferenceRow:
    """One value, which the first partition that reads it decodes."""

    __slots__ = ("data", "value")

    def __init__(self, data: bytes) -> None:
        self.data, self.value = data, _UNREAD


Rows = dict[Any, ReferenceRow]
#: A key and its new value; None if it was deleted.
Change = tuple[Any, bytes | None]


class ReferenceView(Reference[K, V]):
    """The reference data of one partition at one version; `bind` makes it from the prototype of a declaration."""

    def __init__(self, declaration: Reference[K, V]) -> None:
        options: ReferenceOptions = options_of(declaration)
        self.topic, self.key_type, self.value_type = options.topic, options.key_type, options.value_type
        self.decode_key, self._decode = options.decode_key, options.decode
        self._rows: Rows = {}
        #: Rows at `version` that later versions changed; None if the key did not exist.
        self._before: dict[Any, ReferenceRow | None] = {}
        self._shared: SharedRows | None = None
        #: The version that this view shows.
        self.version: Version = ()

    def bind(self, shared: SharedRows) -> ReferenceView[K, V]:
        """Return the view of one partition, at the newest version."""
        bound: ReferenceView[K, V] = object.__new__(type(self))
        vars(bound).update(vars(self))
        if serde.of_topic(self.value_type) is not None:  # each partition has its own clients
            bound._decode = serde.for_messages(self.value_type, self.topic).decode
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
            raise KeyError(f"reference {self.topic!r} has no key {key!r:.200}")
        value: V = self._value(row)
        return value

    def __contains__(self, key: object) -> bool:
        return self._row(key) is not None

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[K]:
        known = [*self._rows, *self._before]
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
        row = self._rows.get(key)
        return self._before.get(key, row) if self._before else row

    def _value(self, row: ReferenceRow) -> Any:
        if row.value is _UNREAD:
            try:
                row.value = self._decode(row.data)
            except RegistryUnreachable:
                raise  # the registry is at fault, not the value
            except Exception as error:
                raise ValueError(f"{self.topic}: decode a value of the reference topic: {text_of(error)}") from error
        return row.value


class SharedRows:
    """The rows of one topic in this process. Only the feed's thread calls `advance`."""

    def __init__(self, partitions: int) -> None:
        self.rows: Rows = {}
        self.version: Version = (0,) * partitions
        self.lock = threading.Lock()
        self._views: weakref.WeakSet[ReferenceView[Any, Any]] = weakref.WeakSet()

    def watch(self, view: ReferenceView[Any, Any]) -> None:
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
def references(kind: type[Any]) -> dict[str, ReferenceView[Any, Any]]:
    """Return the references that a handler class declares, by attribute name, base classes first."""
    found = {name: ReferenceView(each) for name, each in class_attributes(kind, Reference).items()}
    if len({reference.topic for reference in found.values()}) < len(found):
        raise UsageError(f"{kind.__name__} declares two references of one topic. Next: use one of them for both")
    return found
