"""A partition's state: a typed table in memory that costs about as much as a dict.

A table keeps the bytes of the last committed value of each key (`stored`, the source of snapshots) and the decoded
values of keys in use (`_cache`). `_dirty` holds the writes of the open transaction, `_frozen` those of a transaction
that is being committed. A rollback drops both, so no old value has to be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from types import GenericAlias
from typing import Any, Final, Generic, TypeVar, overload

import msgspec

from statehold import serde
from statehold.common import versioned_values
from statehold.common.decoding import UNREADABLE
from statehold.common.table_types import (
    EXACT_TYPES,
    exact_check,
    require_immutable,
    require_key_type,
    require_ordered_key,
)
from statehold.errors import UnstorableValue, UsageError

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Final[Any] = _Absent()
#: deleted keys that may stay in `order` before it is rebuilt, because a rebuild costs as much as the table is long
_TOMBED: Final = 100_000
_encode_keys: Final = msgspec.msgpack.Encoder().encode


class Changes(msgspec.Struct, gc=False):
    """Changes of one table in one transaction: `values[i]` is the new value of `keys[i]`, None if it was deleted."""

    table: str
    keys: list[Any]
    values: list[bytes | None]


class Table(Generic[K, V]):
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
    """

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
    ) -> None:
        require_key_type(key)
        if sorted or ttl:
            require_ordered_key(key)
        if not mutable:
            require_immutable(value)
        self.mutable = mutable
        self.name = ""
        self.sorted = sorted
        self.key_type: Any = key
        #: the types of keys that need no further check before a commit
        self._exact_types = EXACT_TYPES.intersection((key,))
        self._are_exact = exact_check(key)
        self.value_type: Any = value
        self.stored: dict[K, bytes]
        #: every stored key in insertion order, and some deleted ones, so that a full snapshot lists its keys in O(1)
        self.order: list[K]
        self._tombed: set[K]
        self.version, self.upcasters = version, dict(upcasters or {})
        #: milliseconds after its last put until a key expires; 0: never
        self.ttl = round((ttl.total_seconds() if isinstance(ttl, timedelta) else ttl) * 1000)
        self._serde = versioned_values.versioned(serde.for_state(value), version, self.upcasters)
        self._cache: dict[K, Any] | _Unbound = _UNBOUND
        self._dirty: dict[K, Any]
        self._frozen: dict[K, bytes | None]
        #: whether the open transaction has deleted a key
        self._deletes: bool
        self._empty()

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def fresh(self, kinds: tuple[type[Table[Any, Any]], ...] = ()) -> Table[K, V]:
        """Return a new, empty table of this declaration for one partition, with the behaviour of these kinds.

        `statehold.tables.binding.bind` chooses the kinds. The declaration has checked its arguments, and its serde has
        no state, so all partitions share them.
        """
        kind: Any = type("BoundTable", kinds, {}) if kinds else type(self)
        table: Table[K, V] = object.__new__(kind)
        vars(table).update(vars(self))
        table._cache = {}
        table._empty()
        return table

    def _empty(self) -> None:
        """Begin without keys."""
        self.stored, self.order, self._tombed = {}, [], set()
        self._dirty, self._frozen, self._deletes = {}, {}, False

    # Reading

    @overload
    def get(self, key: K) -> V | None: ...

    @overload
    def get(self, key: K, default: D) -> V | D: ...

    def get(self, key: K, default: Any = None) -> Any:
        value = self._cache.get(key, ABSENT)
        if value is ABSENT:
            value = self._load(key)
            if value is ABSENT:
                return default
        return value

    def __getitem__(self, key: K) -> V:
        value = self._cache.get(key, ABSENT)
        if value is ABSENT:
            value = self._load(key)
            if value is ABSENT:
                raise KeyError(key)
        return value  # type: ignore[no-any-return]

    def __contains__(self, key: object) -> bool:
        if key in self._cache:
            return True
        if key in self._dirty:
            return False
        return self._committed(key) is not None

    def __len__(self) -> int:
        before = len(self.stored)
        for key, value in self._frozen.items():
            before += (value is not None) - (key in self.stored)
        for key, value in self._dirty.items():
            before += (value is not ABSENT) - (self._committed(key) is not None)
        return before

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys. You may write meanwhile; a key written then may or may not appear."""
        born = [key for layer in (self._frozen, self._dirty) for key in layer if key not in self.stored]
        for key in [*self.stored, *dict.fromkeys(born)]:
            if key in self:
                yield key

    def keys(self) -> Iterator[K]:
        return iter(self)

    def items(self) -> Iterator[tuple[K, V]]:
        for key in self:
            yield key, self[key]

    def values(self) -> Iterator[V]:
        for key in self:
            yield self[key]

    def range(self, low: K | None = None, high: K | None = None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        """Yield keys and values with low <= key < high in order, or in reverse order; needs `sorted=True`."""
        raise self._unsorted()

    def first(self) -> tuple[K, V] | None:
        """Return the smallest key and its value, None in an empty table; needs `sorted=True`, and scans nothing."""
        raise self._unsorted()

    def last(self) -> tuple[K, V] | None:
        """Return the largest key and its value, None in an empty table; needs `sorted=True`, and scans nothing."""
        raise self._unsorted()

    def _unsorted(self) -> UsageError:
        return UsageError(f"table {self.name!r} is not sorted: declare it with Table(..., sorted=True)")

    # Writing

    def __setitem__(self, key: K, value: V) -> None:
        self._cache[key] = value
        self._dirty[key] = value

    def put(self, key: K, value: V) -> None:
        self._cache[key] = value
        self._dirty[key] = value

    def delete(self, key: K) -> None:
        """Remove the key. Removing an absent key does nothing."""
        if key in self:
            self._cache.pop(key, None)
            self._dirty[key] = ABSENT
            self._deletes = True

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    # For the engine: one call each per transaction

    @property
    def used(self) -> bool:
        """Whether there are keys, or open transactions have touched some."""
        return bool(self.stored or self._dirty or self._frozen)

    @property
    def written(self) -> bool:
        """Whether there are open writes."""
        return bool(self._dirty)

    def freeze(self) -> Changes:
        """Encode the open transaction's writes, and begin a new, empty layer.

        :raises UnstorableValue: a key or a value could not be read back; nothing has changed then.
        """
        encode, keys = self._serde.encode, list(self._dirty)
        if not self._exact_types.issuperset(map(type, keys)) and not self._are_exact(keys):
            self.check_keys(keys)
        try:
            if self._deletes:
                values = [None if value is ABSENT else encode(value) for value in self._dirty.values()]
            else:
                values = list(map(encode, self._dirty.values()))
        except Exception as error:  # an encoder may raise anything
            raise self._unencodable() from error
        changes = Changes(self.name, keys, values)
        self._frozen = dict(zip(changes.keys, values, strict=True))
        self._dirty, self._deletes = {}, False
        return changes

    def commit(self) -> None:
        """Make the frozen writes the state, because they have committed."""
        self.apply(list(self._frozen), list(self._frozen.values()))
        self._frozen = {}

    def rollback(self) -> None:
        """Drop frozen and open writes, and all decoded values, because one may have been changed in place."""
        self._cache.clear()
        self._frozen, self._dirty, self._deletes = {}, {}, False

    def apply(self, keys: list[K], values: list[bytes | None]) -> None:
        """Set committed values in stored form. None deletes; deleting an absent key does nothing (rule D3)."""
        stored, tombed = self.stored, self._tombed
        if not all(map(stored.__contains__, keys)):
            self.order += [key for key in keys if key not in stored and key not in tombed]
        if None not in values:
            stored.update(zip(keys, values, strict=True))  # type: ignore[arg-type]
            if tombed:
                tombed.difference_update(keys)
            return
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                stored[key] = value
                tombed.discard(key)
            else:
                stored.pop(key, None)
                tombed.add(key)
        if len(tombed) > max(_TOMBED, len(stored)):
            self.order, self._tombed = list(stored), set()

    def load(self, keys: list[K], values: list[bytes | None]) -> None:
        """Do the same as `apply` during a restore. Work on the whole table waits for `loaded`."""
        if None not in values:
            self.stored.update(zip(keys, values, strict=True))  # type: ignore[arg-type]
            return
        for key, value in zip(keys, values, strict=True):
            if value is None:
                self.stored.pop(key, None)
            else:
                self.stored[key] = value

    def loaded(self) -> None:
        """End a restore."""
        self.order, self._tombed = list(self.stored), set()

    def decode(self, data: bytes) -> V:
        """Return a stored value as the handler sees it, on any thread if its serde allows. Raises what that raises."""
        value: V = self._serde.decode(data)
        return value

    def encode(self, value: V) -> bytes:
        """Return the stored form of a value. Raises what its serde raises."""
        return self._serde.encode(value)

    def unreadable(self) -> set[int]:
        """Return the versions of stored values that this code cannot read."""
        return (
            self._serde.unreadable(self.stored.values())
            if isinstance(self._serde, versioned_values.Versioned)
            else set()
        )

    def check_in_place(self) -> None:
        """Do nothing, because only traced tables detect a value that was changed in place."""

    def check_keys(self, keys: list[K]) -> None:
        """Require keys that come back from a snapshot as the same keys, with the same bytes.

        A key that is equal to a stored one and has other bytes, such as 1.0 and True for 1, would cost the whole state.

        :raises UnstorableValue: naming the first key that would not.
        """
        if self._come_back(keys):
            return
        for key in keys:
            if not self._come_back([key]):
                text = f"table {self.name!r}: key {key!r:.100} is no {self._key_name()}: {self._why(key)}"
                raise UnstorableValue(text, self.name, key)

    def require_storable(self, key: K) -> None:
        """Check one open write. :raises UnstorableValue:"""
        if key in self._dirty:
            self.check_keys([key])
            if (error := self._unencodable_value(key, self._dirty[key])) is not None:
                raise error

    def _come_back(self, keys: list[K]) -> bool:
        if self.key_type in (str, bytes) and not all(isinstance(key, self.key_type) for key in keys):
            return False
        try:
            data = _encode_keys(keys)
            back = self._decode_keys(data)
            return back == keys and _encode_keys(back) == data
        except (TypeError, ValueError, OverflowError, *UNREADABLE):
            return False

    def _why(self, key: K) -> str:
        try:
            return f"it would come back as {self._decode_keys(_encode_keys([key]))[0]!r}"
        except (TypeError, ValueError, OverflowError, *UNREADABLE) as error:
            return str(error)

    @cached_property
    def _decode_keys(self) -> Callable[[bytes], list[K]]:
        return msgspec.msgpack.Decoder(GenericAlias(list, (self.key_type,))).decode

    def _key_name(self) -> str:
        return getattr(self.key_type, "__name__", str(self.key_type))

    def _unencodable(self) -> UnstorableValue:
        for key, value in self._dirty.items():
            if (error := self._unencodable_value(key, value)) is not None:
                return error
        return UnstorableValue(f"table {self.name!r}: a value cannot be encoded")

    def _unencodable_value(self, key: K, value: Any) -> UnstorableValue | None:
        try:
            if value is not ABSENT:
                self._serde.encode(value)
        except Exception as error:  # noqa: BLE001 - an encoder may raise anything
            text = f"table {self.name!r}, key {key!r:.100}: {value!r:.100} cannot be encoded: {error}"
            return UnstorableValue(text, self.name, key)
        return None

    def _load(self, key: K) -> Any:
        """Decode and return the value of a key, or ABSENT."""
        if key in self._dirty:
            return ABSENT
        data = self._committed(key)
        if data is None:
            return ABSENT
        value = self._cache[key] = self._serde.decode(data)
        return value

    def _committed(self, key: Any) -> bytes | None:
        return self._frozen[key] if key in self._frozen else self.stored.get(key)


class _Unbound(dict[Any, Any]):
    """The cache of a declaration without a partition; every use raises."""

    def _refuse(self, *_: Any) -> Any:
        raise UsageError(
            "this Table is a declaration: use it as self.<name> in a handler that a service or Driver runs"
        )

    get = pop = __setitem__ = __contains__ = _refuse


_UNBOUND: Final = _Unbound()
