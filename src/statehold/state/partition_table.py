"""A partition's state: a typed table in memory that costs about as much as a dict.

A table keeps the bytes of the last committed value of each key (`stored`, the source of snapshots). `_dirty` holds the
writes of the open transaction, `_frozen` those of a transaction that is being committed. A rollback drops both, so no
old value has to be kept. `_cache` holds decoded values of keys in use: a commit drops them if they are more than
`_DECODED`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from itertools import filterfalse
from typing import Any, Final, Self, TypeVar, overload

import msgspec

from statehold.api.declaration import options_of
from statehold.api.table import Table, TableOptions
from statehold.api.values import versioned_values
from statehold.api.values.difference import brief, difference
from statehold.api.values.exact_values import exact_types, forgets, quick_check
from statehold.api.values.table_types import EXACT_TYPES, exact_check
from statehold.errors import MutatedInPlace, UnreadableValue, UnstorableValue, UsageError, text_of
from statehold.state.stored_keys import come_back, why_not

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class _Absent:
    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Final[Any] = _Absent()
#: decoded values that a table keeps at a commit; with more, it drops all and decodes what is read again
_DECODED: Final = 100_000
#: deleted keys that may stay in `order` before it is rebuilt, because a rebuild costs as much as the table is long
_TOMBED: Final = 100_000


class Changes(msgspec.Struct, gc=False):
    """Changes of one table in one transaction: `values[i]` is the new value of `keys[i]`, None if it was deleted."""

    table: str
    keys: list[Any]
    values: list[bytes | None]


class PartitionTable(Table[K, V]):
    """The table of one partition: what the declaration lets a handler call, and what the engine does with it.

    `statehold.bound.table.bind` makes an empty one for each declaration. Each partition gets a `fresh` copy of it.
    """

    #: whether a decoded value is what the handler gets and gives: nothing notes or copies it
    plain = True
    #: whether the values of a serde of the user's own are stored without a comparison with what would come back
    _trusts_serdes = True
    #: whether it keeps a part of the digest for each segment of its keys, so that it computes what changes add
    segmented = False

    def __init__(self, declaration: Table[K, V], name: str = "") -> None:
        options: TableOptions = options_of(declaration)
        #: the name under which it is stored, and that of the handler's attribute
        self.name, self.attribute = name or options.was or options.name, name or options.name
        self.mutable, self.sorted, self.ttl = (
            options.mutable,
            options.sorted,
            options.ttl,
        )
        self.key_type, self.value_type = options.key_type, options.value_type
        self.version, self.upcasters = options.version, options.upcasters
        #: where its committed values are, if it declares that: `memory` or `disk`
        self.storage = options.storage
        #: the types of keys that need no further check before a commit
        self._exact_types = EXACT_TYPES.intersection((self.key_type,))
        self._are_exact = exact_check(self.key_type)
        self.serde = options.serde
        #: returns whether values need no comparison with what would come back; None for a serde of the user's own
        self._certainly_same = quick_check(options.serde)
        #: the type of its values, if each instance of it comes back
        self._exact_values = exact_types(options.serde)
        #: whether a commit drops the values, because they have sets: after a restore a set has another order
        self._forgets = forgets(options.serde)
        self.stored: dict[K, bytes]
        #: every stored key in insertion order, and some deleted ones, so that a full snapshot lists its keys in O(1)
        self.order: list[K]
        self._tombed: set[K]
        self._cache: dict[K, Any] = {}
        self._dirty: dict[K, Any]
        self._frozen: dict[K, bytes | None]
        #: whether the open transaction has deleted a key
        self._deletes: bool
        self._empty()

    def fresh(self) -> Self:
        """Return a new, empty table for one partition.

        The declaration has checked its arguments, and its serde has no state, so all partitions share them.
        """
        table = object.__new__(type(self))
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
                raise self._missing(key)
        return value  # type: ignore[no-any-return]

    def _missing(self, key: object) -> KeyError:
        return KeyError(f"table {self.name!r} has no key {brief(key, 200)}")

    def __contains__(self, key: Any) -> bool:
        if key in self._cache:
            return True
        if key in self._dirty:
            return self._dirty[key] is not ABSENT
        return self._committed(key) is not None

    def __len__(self) -> int:
        before = len(self.stored)
        for key, value in self._frozen.items():
            before += (value is not None) - (key in self.stored)
        for key, value in self._dirty.items():
            before += (value is not ABSENT) - (self._committed(key) is not None)
        return before

    def __iter__(self) -> Iterator[K]:
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
        raise self._unsorted()

    def first(self) -> tuple[K, V] | None:
        raise self._unsorted()

    def last(self) -> tuple[K, V] | None:
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

    def _replace(self, key: K, value: V) -> None:
        """Write a key that exists, for tables whose `__setitem__` has to know whether it does."""
        self._cache[key] = value
        self._dirty[key] = value

    def delete(self, key: K) -> None:
        if key in self:
            self._cache.pop(key, None)
            self._dirty[key] = ABSENT
            self._deletes = True

    def _expire(self, key: K) -> None:
        """Remove a key that is no longer visible, because it has expired."""
        self._cache.pop(key, None)
        self._dirty[key], self._deletes = ABSENT, True

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

        :raises UnstorableValue: a key or a value would not come back as it is; nothing has changed then.
        """
        encode, keys = self.serde.encode, list(self._dirty)
        if not self._exact_types.issuperset(map(type, keys)) and not self._are_exact(keys):
            self.check_keys(keys)
        self.check_values()
        try:
            if self._deletes:
                values = [None if value is ABSENT else encode(value) for value in self._dirty.values()]
            else:
                values = list(map(encode, self._dirty.values()))
        except Exception as error:  # an encoder may raise anything
            for key, value in self._dirty.items():
                if value is not ABSENT:
                    self._encoded(key, value)
            raise UnstorableValue(f"table {self.name!r}: a value cannot be encoded") from error
        self._frozen = dict(zip(keys, values, strict=True))
        self._dirty, self._deletes = {}, False
        return Changes(self.name, keys, values)

    def effect(self, changes: Changes, before: Callable[[Changes], list[bytes | None]]) -> tuple[int, int]:
        """Return what changes add to the digest and to the number of keys, before `apply`; only if `segmented`.

        `before` returns the committed values of changed keys.
        """
        raise NotImplementedError

    def commit(self) -> None:
        """Make the frozen writes the state, because they have committed."""
        self.apply(list(self._frozen), list(self._frozen.values()))
        if self._forgets:
            for key in self._frozen.keys() - self._dirty.keys():
                self._cache.pop(key, None)
        self._frozen = {}
        if len(self._cache) > _DECODED:
            self._cache.clear()

    def rollback(self) -> None:
        """Drop frozen and open writes, and all decoded values, because one may have been changed in place."""
        self._cache.clear()
        self._frozen, self._dirty, self._deletes = {}, {}, False

    def apply(self, keys: list[K], values: list[bytes | None]) -> None:
        """Set committed values in stored form. None deletes; deleting an absent key does nothing (rule D3)."""
        stored, tombed = self.stored, self._tombed
        if born := list(filterfalse(stored.__contains__, keys)):
            self.order += [key for key in born if key not in tombed] if tombed else born
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
        self._trim()

    def _trim(self, others: int = 0) -> None:
        """Rebuild `order` if most of it was deleted. `others`: deleted keys in it that are not in `_tombed`."""
        if len(self._tombed) + others > max(_TOMBED, len(self.stored)):
            self.order, self._tombed = list(self.stored), set()

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

    def listed(self, size: int) -> Iterator[list[K]]:
        """Yield the committed keys as of now, in pieces; some may be deleted meanwhile. Any thread."""
        order = self.order  # it is never shortened in place
        for first in range(0, len(order), size):
            yield order[first : first + size]

    def decode(self, data: bytes) -> V:
        """Return a stored value as the handler sees it, on any thread if its serde allows. Raises what that raises."""
        value: V = self.serde.decode(data)
        return value

    def encode(self, value: V) -> bytes:
        """Return the stored form of a value. Raises what its serde raises."""
        return self.serde.encode(value)

    def unreadable(self) -> set[int]:
        """Return the versions of stored values that this code cannot read."""
        return (
            self.serde.unreadable(self.stored.values()) if isinstance(self.serde, versioned_values.Versioned) else set()
        )

    def check_keys(self, keys: list[K]) -> None:
        """Require keys that come back from a snapshot as the same keys, with the same bytes.

        A key that is equal to a stored one and has other bytes, such as 1.0 and True for 1, would cost the whole state.

        :raises UnstorableValue: naming the first key that would not.
        """
        if come_back(self.key_type, keys):
            return
        for key in keys:
            if not come_back(self.key_type, [key]):
                kind, why = getattr(self.key_type, "__name__", str(self.key_type)), why_not(self.key_type, key)
                text = f"table {self.name!r}: key {brief(key)} cannot be stored as {kind}: {why}"
                raise UnstorableValue(text, self.name, key)

    def check_values(self) -> None:
        """Require that every value of the open transaction comes back as it is: same types, same content.

        :raises UnstorableValue: naming the first one that would not, and where it differs.
        """
        values: Collection[Any] = self._dirty.values()
        if self._deletes:
            values = [value for value in values if value is not ABSENT]
        if self._exact_values.issuperset(map(type, values)):
            return
        try:
            certainly_same = self._certainly_same
            if self._trusts_serdes if certainly_same is None else certainly_same(values):
                return
        except RecursionError:  # a value is nested more deeply than Python's functions may be
            pass
        for key, value in self._dirty.items():
            self._check_value(key, value)

    def _check_value(self, key: K, value: Any) -> None:
        if value is ABSENT:
            return
        data = self._encoded(key, value)
        try:
            back = self.serde.decode(data)
        except Exception as error:  # a decoder may raise anything
            what = f"{brief(value)} would not come back as {self.value_type!r:.100}: {text_of(error)}"
            raise self._unstorable(key, what) from error
        if (found := self._difference(value, back)) is not None:
            raise self._unstorable(key, f"{found}. Next: put what would come back")

    def _encoded(self, key: K, value: Any) -> bytes:
        """Return the stored form of an open write. :raises UnstorableValue:"""
        try:
            return self.serde.encode(value)
        except Exception as error:  # an encoder may raise anything
            raise self._unstorable(key, f"{brief(value)} cannot be encoded: {text_of(error)}") from error

    def _unstorable(self, key: K, what: str) -> UnstorableValue:
        return UnstorableValue(f"table {self.name!r}, key {brief(key)}: {what}", self.name, key)

    def _difference(self, live: Any, back: Any) -> str | None:
        return None if self._certainly_same is None else difference(live, back)

    def require_storable(self, key: K) -> None:
        """Check one open write. :raises UnstorableValue:"""
        if key in self._dirty:
            self.check_keys([key])
            self._check_value(key, self._dirty[key])

    def _load(self, key: K) -> Any:
        """Return the value of a key that is not in the cache, or ABSENT; decode it if no open write has it."""
        if key in self._dirty:
            return self._dirty[key]
        data = self._committed(key)
        if data is None:
            return ABSENT
        try:
            value = self._cache[key] = self.serde.decode(data)
        except Exception as error:  # a decoder or an upcaster may raise anything
            raise self._unreadable_value(key, data, error) from error
        return value

    def decoded(self, key: K, data: bytes) -> V:
        """Return the stored value of a key as the handler sees it, on any thread if its serde allows.

        :raises UnreadableValue:
        """
        try:
            return self.decode(data)
        except Exception as error:  # as in `_load`
            raise self._unreadable_value(key, data, error) from error

    def _unreadable_value(self, key: K, data: bytes, error: Exception) -> UnreadableValue:
        version = versioned_values.version_of(data) if self.version > 1 else 1
        kind = getattr(self.value_type, "__name__", repr(self.value_type))
        return UnreadableValue(
            f"table {self.name!r}, key {brief(key)}: the stored value has version {version}, and this code, which "
            f"declares version {self.version}, cannot read it as {kind:.100}: {text_of(error)}. No record is at fault, "
            f"and nothing was changed. Next: run the code that wrote it, or {self._advice(version)}"
        )

    def _advice(self, version: int) -> str:
        """Return how this table could read a stored value of this version."""
        if version != self.version:
            return f"fix the upcasters from version {version} on"
        if version == 1 and not versioned_values.can_version(self.serde):
            return "give the table a serde that reads it"
        return f"declare version={version + 1} and upcasters={{{version}: ...}} with the new type"

    def _committed(self, key: Any) -> bytes | None:
        return self._frozen[key] if key in self._frozen else self.stored.get(key)


class TracedTable(PartitionTable[K, V]):
    """Detects values that were changed in place or would not survive a snapshot: for development and tests, slower."""

    plain = False
    _trusts_serdes = False
    #: stored form of each value that the open transaction has read; the class's own stays empty
    _reads: dict[Any, bytes] = {}  # noqa: RUF012

    def get(self, key: K, default: Any = None) -> Any:
        self._require_own_thread()
        value: Any = super().get(key, ABSENT)
        return default if value is ABSENT else self._note_read(key, value)

    def __getitem__(self, key: K) -> V:
        self._require_own_thread()
        value: V = self._note_read(key, super().__getitem__(key))
        return value

    def __contains__(self, key: object) -> bool:
        self._require_own_thread()
        return super().__contains__(key)

    def __len__(self) -> int:
        self._require_own_thread()
        return super().__len__()

    def __iter__(self) -> Iterator[K]:
        self._require_own_thread()
        return super().__iter__()

    def __setitem__(self, key: K, value: V) -> None:
        self._require_own_thread()
        super().__setitem__(key, value)

    def put(self, key: K, value: V) -> None:
        self._require_own_thread()
        super().put(key, value)

    def _replace(self, key: K, value: V) -> None:
        self._require_own_thread()
        super()._replace(key, value)

    def delete(self, key: K) -> None:
        self._require_own_thread()
        super().delete(key)

    def _require_own_thread(self) -> None:
        """:raises UsageError: this is not the first thread that used the table, which is the partition's."""
        me = threading.current_thread()
        owner: threading.Thread = self.__dict__.setdefault("_owner", me)
        if owner is not me:
            raise UsageError(
                f"table {self.name!r} belongs to thread {owner.name!r} and was used on thread {me.name!r}: its "
                f"partition may commit or move meanwhile. Next: read what the other thread needs on the "
                f"partition's thread, and pass it on; the program around the service "
                f"reads the state with key_lookup.Finder (docs/reference/ops.md)"
            )

    def rollback(self) -> None:
        """Also drop the values that were changed in place."""
        super().rollback()
        for key in self._reads:
            self._cache.pop(key, None)
        self._reads = {}

    def check_in_place(self) -> None:
        """:raises MutatedInPlace: a value of the open transaction was changed in place."""
        for key, before in self._reads.items():
            value = self._cache.get(key, ABSENT)
            if key not in self._dirty and value is not ABSENT and self.serde.encode(value) != before:
                raise MutatedInPlace(
                    f"table {self.name!r}, key {key!r}: the value was changed in place and would be lost. "
                    f"Next: put() a new value instead, best of a frozen type"
                )
        self._reads = {}

    def _difference(self, live: Any, back: Any) -> str | None:
        """Also compare values that only the user's own serde knows: by their types and bytes."""
        if self._certainly_same is not None:
            return super()._difference(live, back)
        if type(live) is type(back) and self.serde.encode(live) == self.serde.encode(back):
            return None
        return f"{brief(live)} would be {brief(back)} after a restore"

    def _note_read(self, key: K, value: Any) -> Any:
        if key not in self._reads and key not in self._dirty:
            if not self._reads:
                self._reads = {}
            self._reads[key] = self.serde.encode(value)
        return value


class RetiredTable(PartitionTable[K, bytes]):
    """A table that the code no longer uses: its rows stay in the state until they are dropped (rule D8).

    It keeps stored values of any type and version, and decodes none. No handler gets it.
    """
