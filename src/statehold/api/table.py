"""The declarations of a table and of a set of seen keys, with what a handler may call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

from statehold.api.declaration import Declaration
from statehold.api.values import serde, versioned_values
from statehold.api.values.table_types import (
    require_immutable,
    require_key_type,
    require_ordered_key,
    require_storage,
)
from statehold.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeForm

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


@dataclass(slots=True)
class TableOptions:
    """What a `Table` declares."""

    key_type: Any
    value_type: Any
    sorted: bool
    version: int
    upcasters: Mapping[int, versioned_values.Upcaster]
    #: milliseconds after its last put until a key expires; 0: never
    ttl: int
    mutable: bool
    serde: serde.Serde[Any]
    #: the attribute
    name: str = ""
    #: the name under which it is stored, if it is another one
    was: str = ""
    #: where its committed values are; None: `state.storage` decides
    storage: Literal["memory", "disk"] | None = None


class Table(Declaration, Generic[K, V]):
    """Declares a table of a `Handler`. In a started partition it is the table itself.

    `key` is str, int, bytes or a tuple of them. Decimal and float are rejected, because equal ones may have different
    bytes. `value` is any type msgspec knows, or an object with `encode` and `decode`.
    Values are immutable, because a change counts only when it is `put`. A mutable type needs `mutable=True`, which
    copies the value at each read and `put`. With `sorted=True` iteration is in key order and `range` works. A plain
    table has no defined order, and no cost for one.

    If old bytes do not fit a new type of the value, give the table a new `version` and an upcaster from the one before:
    `Table(key=str, value=Account, version=2, upcasters={1: from_v1})` with `def from_v1(old: AccountV1) -> Account`.
    The annotation of its parameter is the type of the old bytes; without one they are decoded as plain dicts and lists.
    An old value is upcast when it is read, and stored in the new version when its key is written
    (docs/how-to/state/upgrades.md).

    With `ttl` (seconds, or a timedelta) a key expires that long after its last `put`, by the partition's own time
    (docs/how-to/write/timers.md).

    A renamed attribute needs `was="its first name"`, from then on: the table stays stored under that name, so a rename
    costs nothing. Commands, exports and requests over HTTP use the stored name, the handler's code the attribute.

    With `storage="disk"` the committed values are in files on a local disk, and those in use in memory
    (docs/how-to/state/disk.md). The key is str, bytes, int or a tuple of them with a fixed length. By default the
    setting `state.storage` decides.

    Use it on the partition's thread only.

    :raises UsageError: the type of the key or of the value is not supported, there is no such storage, or a version has
        no upcaster.
    """

    @overload
    def __init__(
        self,
        *,
        key: type[K],
        value: type[V] | serde.Serde[V],
        sorted: bool = False,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        ttl: float | timedelta = 0,
        mutable: bool = False,
        was: str = "",
        storage: Literal["memory", "disk"] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        key: TypeForm[K],
        value: TypeForm[V],
        sorted: bool = False,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        ttl: float | timedelta = 0,
        mutable: bool = False,
        was: str = "",
        storage: Literal["memory", "disk"] | None = None,
    ) -> None: ...

    def __init__(
        self,
        *,
        key: Any,
        value: Any,
        sorted: bool = False,
        version: int = 1,
        upcasters: Mapping[int, versioned_values.Upcaster] | None = None,
        ttl: float | timedelta = 0,
        mutable: bool = False,
        was: str = "",
        storage: Literal["memory", "disk"] | None = None,
    ) -> None:
        require_name(was)
        require_key_type(key)
        if sorted or ttl:
            require_ordered_key(key)
        if not mutable:
            require_immutable(value)
        require_storage(storage, key)
        steps = dict(upcasters or {})
        self._options = TableOptions(
            key_type=key,
            value_type=value,
            sorted=sorted,
            version=version,
            upcasters=steps,
            ttl=milliseconds(ttl),
            mutable=mutable,
            was=was,
            storage=storage,
            serde=versioned_values.versioned(serde.for_state(value), version, steps),
        )

    def __set_name__(self, owner: type, name: str) -> None:
        self._options.name = name

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: D) -> V | D: ...

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or `default`."""
        raise self._unbound()

    def __getitem__(self, key: K) -> V:
        """Return the value of a key. :raises KeyError: it is absent."""
        raise self._unbound()

    def __contains__(self, key: object) -> bool:
        """Return whether the key exists."""
        raise self._unbound()

    def __len__(self) -> int:
        """Return the number of keys."""
        raise self._unbound()

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys. You may write meanwhile; a key written then may or may not appear."""
        raise self._unbound()

    def keys(self) -> Iterator[K]:
        """Iterate over the keys, in key order with `sorted=True`. You may write meanwhile."""
        raise self._unbound()

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over keys and values, in key order with `sorted=True`. You may write meanwhile."""
        raise self._unbound()

    def values(self) -> Iterator[V]:
        """Iterate over the values, in key order with `sorted=True`. You may write meanwhile."""
        raise self._unbound()

    def range(self, low: K | None = None, high: K | None = None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Yield keys and values with low <= key < high in order, or in reverse order; needs `sorted=True`."""
        raise self._unbound()

    def first(self) -> tuple[K, V] | None:
        """Return the smallest key and its value, None in an empty table; needs `sorted=True`, and scans nothing."""
        raise self._unbound()

    def last(self) -> tuple[K, V] | None:
        """Return the largest key and its value, None in an empty table; needs `sorted=True`, and scans nothing."""
        raise self._unbound()

    def __setitem__(self, key: K, value: V) -> None:
        """Set the value of a key. The record's transaction commits it."""
        raise self._unbound()

    def put(self, key: K, value: V) -> None:
        """Do the same as `table[key] = value`."""
        raise self._unbound()

    def delete(self, key: K) -> None:
        """Remove the key. Removing an absent key does nothing."""
        raise self._unbound()

    def __delitem__(self, key: K) -> None:
        """Remove the key. :raises KeyError: it is absent."""
        raise self._unbound()


class Retired(Declaration, Generic[K]):
    """Declares that a `Handler` no longer uses a table, a `Dedupe` included, whose rows its state still holds.

        balances = Retired(key=str)

    It takes the place of the declaration under the same name, which needs neither the type of the values nor their
    upcasters any more. The handler can neither read nor write it. The rows stay in the state as they are until
    `statehold state migrate --drop` deletes them, so an earlier release can take the partition back
    (docs/how-to/state/upgrades.md).
    `key` is the type that the keys have had. `was`: see `Table`.

    :raises UsageError: the type of the key is not supported.
    """

    @overload
    def __init__(self, *, key: type[K], was: str = "") -> None: ...

    @overload
    def __init__(self, *, key: TypeForm[K], was: str = "") -> None: ...

    def __init__(self, *, key: Any, was: str = "") -> None:
        require_name(was)
        require_key_type(key)
        self._options = TableOptions(
            key_type=key,
            value_type=bytes,
            sorted=False,
            version=1,
            upcasters={},
            ttl=0,
            mutable=False,
            was=was,
            serde=serde.Raw(),
        )

    def __set_name__(self, owner: type, name: str) -> None:
        self._options.name = name


def require_name(was: str) -> None:
    """:raises UsageError: no attribute can have had this name; '' stands for no earlier name."""
    if was and not was.isidentifier():
        raise UsageError(f"was={was!r}: give the name that the attribute had before")


def milliseconds(span: float | timedelta) -> int:
    """Convert seconds or a timedelta."""
    return round((span.total_seconds() if isinstance(span, timedelta) else span) * 1000)


@dataclass(slots=True)
class DedupeOptions:
    """What a `Dedupe` declares."""

    key_type: Any
    #: milliseconds
    ttl: int
    most: int
    #: the attribute
    name: str = ""
    #: the name under which it is stored, if it is another one
    was: str = ""
    #: where the keys are; None: `state.storage` decides
    storage: Literal["memory", "disk"] | None = None


class Dedupe(Declaration, Generic[K]):
    """Declares a set of keys that a `Handler` has seen, kept for `ttl` (seconds, or a timedelta).

        posts = Dedupe(key=str, ttl=timedelta(hours=24))

        def on_record(self, record):
            if self.posts.seen(record.value.post_id):
                return

    It is part of the state and uses the partition's own time. `most` limits the number of keys: beyond it, the key that
    would expire first is dropped early. `was`, `storage`: see `Table`.

    :raises UsageError: the key has no order or cannot be on disk, there is no such storage, `ttl` is 0, or `most` is
        negative.
    """

    def __init__(
        self,
        *,
        key: type[K],
        ttl: float | timedelta,
        most: int = 0,
        was: str = "",
        storage: Literal["memory", "disk"] | None = None,
    ) -> None:
        require_name(was)
        require_key_type(key)
        require_ordered_key(key)
        require_storage(storage, key)
        span = milliseconds(ttl)
        if not span or most < 0:
            raise UsageError("Dedupe: ttl must be above 0, and most a number of keys")
        self._options = DedupeOptions(key, span, most, was=was, storage=storage)

    def __set_name__(self, owner: type, name: str) -> None:
        self._options.name = name

    def seen(self, key: K) -> bool:
        """Return whether this key came within the last `ttl`. If not, keep it from now on."""
        raise self._unbound()
