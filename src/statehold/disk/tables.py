"""The tables that keep their committed values on disk, and the memory that their decoded values may take."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from sys import getsizeof
from typing import Any, Final, TypeVar

from statehold.api.values.difference import brief
from statehold.disk.keys import NO_KEY, KeyCodec
from statehold.disk.port import PartitionStore
from statehold.disk.rows import LONGEST
from statehold.disk.stored import StoredOnDisk
from statehold.state.kinds.sorted import SortedTable
from statehold.state.partition_table import ABSENT, Changes, PartitionTable

K = TypeVar("K")
V = TypeVar("V")

#: estimated bytes of a decoded value: these, those of its key, and these for each byte of its stored form
_EACH: Final = 250
_PER_BYTE: Final = 2
#: stored values that are kept between two commits, and their bytes
_FETCHED: Final = 50_000
_FETCHED_BYTES: Final = 16_000_000


def _key_bytes(key: Any) -> int:
    """Return about the bytes of a key."""
    return sum(map(getsizeof, key)) if type(key) is tuple else getsizeof(key)


class DecodedBudget:
    """The memory for decoded values of all tables on disk of a process: `state.memory`, in equal shares."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tables: weakref.WeakSet[DiskTable[Any, Any]] = weakref.WeakSet()
        #: held while tables come and go, because the memory guard counts them on other threads
        self._lock = threading.Lock()

    def join(self, table: DiskTable[Any, Any]) -> None:
        with self._lock:
            self._tables.add(table)

    def leave(self, table: DiskTable[Any, Any]) -> None:
        with self._lock:
            self._tables.discard(table)

    @property
    def share(self) -> int:
        """Return the bytes of one table."""
        return self._limit // max(1, len(self._tables))

    def rest(self) -> int:
        """Return the bytes that decoded values may still take; any thread."""
        with self._lock:
            return max(0, self._limit - sum(table.decoded_bytes for table in self._tables))


class DiskTable(PartitionTable[K, V]):
    """Keeps committed values in the files, and the decoded values of keys in use in memory within a budget.

    `_cache` holds the values of the newest keys, `_older` those of the keys before them. A key that is used moves to
    `_cache`. When that has half of the budget it becomes `_older`, and what was there is dropped.
    """

    stored: StoredOnDisk  # type: ignore[assignment]
    _older: dict[Any, Any]
    #: committed values that the open transaction has read, so that each is fetched once
    _fetched: dict[Any, bytes | None]
    #: estimated bytes of `_cache`, and of one value in `_older`
    _weight, _mean = 0, _EACH
    #: values of `_cache` that `_weight` has; the others were written by the open transaction
    _weighed = 0
    #: bytes by which the rows of the last `apply` have grown
    _grown = 0
    _fetched_bytes = 0
    #: a process with the same types has read all values that are in the files
    proven = False
    #: values fetched from the files since the last look of a metric
    reads = 0
    #: why each key must fit into the files whole, so that its place there keeps the order; "": a longer one is cut
    whole_keys = ""

    def attach(self, store: PartitionStore, codec: KeyCodec, budget: DecodedBudget) -> None:
        """Begin with what the files hold."""
        self.stored, self.order = StoredOnDisk(store, self.name, codec), []
        self._older, self._fetched, self._budget = {}, {}, budget
        budget.join(self)
        self._refresh_share()

    @property
    def in_memory(self) -> int:
        """Return the number of decoded values in memory."""
        return len(self._cache) + len(self._older)

    @property
    def decoded_bytes(self) -> int:
        """Return the estimated bytes of decoded values and their keys in memory."""
        return self._weight + self._mean * len(self._older)

    def delete(self, key: K) -> None:
        super().delete(key)
        self._older.pop(key, None)

    def _expire(self, key: K) -> None:
        super()._expire(key)
        self._older.pop(key, None)

    def _load(self, key: K) -> Any:
        if key in self._dirty:
            return self._dirty[key]
        value = self._older.get(key, ABSENT)
        if value is not ABSENT:
            self._cache[key] = value
            self._weigh(self._mean, 1)
            return value
        data = self._committed(key)
        if data is None:
            return ABSENT
        value = self._cache[key] = self.decoded(key, data)
        self._weigh(_EACH + _PER_BYTE * len(data) + _key_bytes(key), 1)
        return value

    def _weigh(self, size: int, values: int) -> None:
        self._weight += size
        self._weighed += values
        if self._weight > self._half:
            self._mean = self._weight // max(1, len(self._cache))
            self._older, self._cache, self._weight, self._weighed = self._cache, {}, 0, 0
            self._forget_fetched()

    def _refresh_share(self) -> None:
        """Compute the share once for a transaction, because counting the tables takes longer than a look-up."""
        self._half = self._budget.share // 2

    def _forget_fetched(self) -> None:
        self._fetched.clear()
        self._fetched_bytes = 0

    def _committed(self, key: Any) -> bytes | None:
        return self._frozen[key] if key in self._frozen else self.before(key)

    def before(self, key: Any) -> bytes | None:
        """Return the committed value; on the partition's thread only."""
        data = self._fetched.get(key, ABSENT)
        if data is ABSENT:
            if len(self._fetched) >= _FETCHED or self._fetched_bytes >= _FETCHED_BYTES:
                self._forget_fetched()
            self.reads += 1
            data = self._fetched[key] = self.stored.get(key)
            self._fetched_bytes += len(data or b"")
        return data  # type: ignore[no-any-return]

    def before_each(self, keys: list[K]) -> list[bytes | None]:
        """Return the committed values of keys; on the partition's thread only."""
        fetched = self._fetched
        absent = [key for key in keys if key not in fetched]
        if absent:
            found = self.stored.get_each(absent)
            self.reads += len(absent)
            size = sum(map(len, filter(None, found)))
            if len(fetched) + len(absent) > _FETCHED or self._fetched_bytes + size > _FETCHED_BYTES:
                rest = iter(found)
                return [fetched[key] if key in fetched else next(rest) for key in keys]
            fetched.update(zip(absent, found, strict=True))
            self._fetched_bytes += size
        return list(map(fetched.__getitem__, keys))

    def __len__(self) -> int:
        count = self.stored.count
        for key, value in self._frozen.items():
            count += (value is not None) - (self.before(key) is not None)
        for key, value in self._dirty.items():
            count += (value is not ABSENT) - (self._committed(key) is not None)
        return count

    def __iter__(self) -> Iterator[K]:
        born = [key for layer in (self._frozen, self._dirty) for key in layer if self.before(key) is None]
        seen = dict.fromkeys(born)
        for key in self.stored:
            if key not in seen and key in self:
                yield key
        for key in seen:
            if key in self:
                yield key

    def freeze(self) -> Changes:
        self._require_places(list(self._dirty))
        return super().freeze()

    def _require_places(self, keys: list[K], advice: str = "use a shorter key, or ", safe: str = "") -> None:
        """:raises UnstorableValue: a key is too long for files that have the order of keys."""
        if not self.whole_keys:
            return
        for key in keys:
            try:
                length = len(self.stored.codec.encode(key))
            except NO_KEY:
                continue  # `check_keys` says what is wrong
            if length >= LONGEST:
                raise self._unstorable(
                    key,
                    f"it takes {length} bytes, and a key of a {self.whole_keys} on disk at most {LONGEST - 1}. {safe}"
                    f"Next: {advice}declare {brief(self.attribute)} with storage='memory'",
                )

    def commit(self) -> None:
        frozen, older = self._frozen, self._older
        self.apply(list(frozen), list(frozen.values()))
        for key, value in frozen.items():
            if value is None:
                older.pop(key, None)
            elif self._forgets and key not in self._dirty:
                self._cache.pop(key, None)
                older.pop(key, None)
        self._frozen = {}
        self._refresh_share()
        if frozen:
            self._weigh_written(frozen)

    def _weigh_written(self, frozen: Mapping[K, bytes | None]) -> None:
        """Weigh what was written without a read: at most the largest values. A value that is replaced may grow."""
        fresh, size = len(self._cache) - self._weighed, max(0, self._grown)
        if fresh > 0:
            size += sum(sorted(map(len, filter(None, frozen.values())))[-fresh:])
        each = _EACH + _key_bytes(next(iter(frozen)))
        self._weigh(each * max(0, fresh) + _PER_BYTE * size, fresh)

    def rollback(self) -> None:
        super().rollback()
        self._older, self._weight, self._weighed = {}, 0, 0
        self._forget_fetched()

    def apply(self, keys: list[K], values: list[bytes | None]) -> None:
        stored, fetched, born, grown = self.stored, self._fetched, 0, 0
        for key, value in zip(keys, values, strict=True):
            before = fetched[key] if key in fetched else self.before(key)
            born += (value is not None) - (before is not None)
            grown += len(value or b"") - len(before or b"")
        self._grown = grown
        stored.unwritten.update(zip(keys, values, strict=True))
        stored.count += born
        self._forget_fetched()

    def load(self, keys: list[K], values: list[bytes | None]) -> None:
        self._require_places(keys, "", "The state in Kafka is unchanged. ")
        self.stored.unwritten.update(zip(keys, values, strict=True))

    def listed(self, size: int) -> Iterator[list[K]]:
        keys = iter(self.stored)
        while piece := list(islice(keys, size)):
            yield piece

    def loaded(self) -> None:
        """Do nothing: `DiskState.loaded` counts what is in the files."""

    def unreadable(self) -> set[int]:
        return set() if self.proven else super().unreadable()


class SortedDiskTable(SortedTable[K, V], DiskTable[K, V]):
    """A table on disk in the order of its keys, which is that of its rows."""

    whole_keys = "sorted table"
    #: the changes that `_order` was made from; every `flush` begins new ones
    _ordered: Mapping[K, Any] | None = None

    def __setitem__(self, key: K, value: V) -> None:
        PartitionTable.__setitem__(self, key, value)
        if self._order is not None:
            self._order.add(key)

    commit = DiskTable.commit
    loaded = DiskTable.loaded

    def rollback(self) -> None:
        DiskTable.rollback(self)
        self._order = None

    def range(self, low: K | None = None, high: K | None = None, *, reverse: bool = False) -> Iterator[tuple[K, V]]:
        above = list(self._keys().irange(low, high, inclusive=(True, False), reverse=reverse))
        yield from self._rows_between(low, high, above, reverse=reverse)

    def _rows_between(
        self, low: K | None, high: K | None, above: Iterable[K], *, reverse: bool
    ) -> Iterator[tuple[K, V]]:
        """Yield the rows of the files, and of `above`, in order."""
        for key in self.stored.between(low, high, above, reverse=reverse):
            if key in self:
                yield key, self[key]
            else:
                self.stored.passed += 1

    def _keys(self) -> Any:
        """Return the keys that are not in the files yet, in order, and some that are no longer there."""
        if self._order is None or self._ordered is not self.stored.unwritten:
            from sortedcontainers import SortedSet  # as in SortedTable

            self._ordered = self.stored.unwritten
            self._order = SortedSet(chain(self._ordered, self._frozen, self._dirty))
        return self._order

    def _outermost(self, *, reverse: bool) -> tuple[K, V] | None:
        above = self._keys().irange(reverse=reverse)  # no list, because many rows may wait for the files
        return next(self._rows_between(None, None, above, reverse=reverse), None)
