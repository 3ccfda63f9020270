"""Tables on disk whose rows are due: the files also have an index, by due time and then by key (rule X6)."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any, Final, TypeVar

from statehold.disk.keys import INT_BYTES, KeyCodec, decode_int, encode_int
from statehold.disk.port import PartitionStore, StoreSnapshot
from statehold.disk.rows import check_of
from statehold.disk.tables import DecodedBudget, DiskTable
from statehold.state.digest import hash64
from statehold.state.kinds.due_index import DueIndex, DueTable
from statehold.state.kinds.joins import JoinTable
from statehold.state.kinds.windows import WindowTable
from statehold.state.partition_table import ABSENT, PartitionTable

K = TypeVar("K")
V = TypeVar("V")

#: where a restore sorts the entries of a large index
SORTING: Final = "sorting"
#: entries that it sorts in memory, and those that it writes at once
_RUN: Final = 100_000
_WRITE: Final = 20_000
_RUN_BYTES: Final = 4
#: entries that are read ahead: at first, and later
_FEW, _MANY = 16, 512
_SUM: Final = 1 << 64

#: due time and key
Entry = tuple[int, Any]


def index_of(table: str) -> str:
    """Return the name under which the files have the index of a table; no table has a space in its name."""
    return f"due {table}"


class DueOnDisk(DueIndex[K]):
    """Has in memory only the entries of writes that the files do not have yet, and some that were read ahead.

    `recent` returns the entries of those writes, `read` a number of entries of the files after a place.
    """

    __slots__ = ("_after", "_ahead", "_ends", "_many", "_next", "_read", "_recent")

    def __init__(
        self,
        recent: Callable[[], Iterable[Entry]],
        read: Callable[[bytes | None, int], list[tuple[bytes, Entry]]],
    ) -> None:
        super().__init__()
        self._recent, self._read = recent, read
        #: entries of the files that were read and not taken, and the place of the last one
        self._ahead: deque[Entry] = deque()
        self._after: bytes | None = None
        self._many, self._ends = _FEW, False
        #: due time of the first entry of the files, as it was last seen
        self._next = math.inf

    def restart(self) -> None:
        """Begin with the first entry again: the files have changed, or a transaction was rolled back."""
        DueIndex.__init__(self, self._recent())
        self._ahead.clear()
        self._after, self._many, self._ends = None, _FEW, False

    @property
    def earliest(self) -> float:
        ahead = self._filled()
        self._next = ahead[0][0] if ahead else math.inf
        return min(super().earliest, self._next)

    @property
    def known(self) -> float:
        return min(super().earliest, self._next)

    def _filled(self) -> deque[Entry]:
        """Return the entries that were read ahead; empty behind the last one."""
        ahead = self._ahead
        if not ahead and not self._ends:
            found = self._read(self._after, self._many)
            ahead.extend(entry for _, entry in found)
            if found:
                self._after = found[-1][0]
            self._ends, self._many = len(found) < self._many, _MANY
        return ahead

    def _first(self, until: float) -> Entry | None:
        first, ahead = super()._first(until), self._filled()
        if ahead and ahead[0][0] <= until and (first is None or ahead[0] < first):
            return ahead[0]
        return first

    def _pop(self, entry: Entry) -> None:
        super()._pop(entry)
        if self._ahead and self._ahead[0] == entry:
            self._ahead.popleft()

    def freeze(self) -> None:
        self._taken = []  # a rollback reads the files again

    def commit(self) -> None:
        """Do nothing: the entries stay until the files have them."""

    def rollback(self) -> None:
        """Do nothing: the table restarts it."""

    def is_long(self, rows: int) -> bool:
        return False


class DatedDiskTable(DiskTable[K, V]):
    """Writes rows and their entries in the index at once, so the index of the files is exactly that of their rows."""

    #: milliseconds that a due time is after that of its entry, because a release may change grace and within
    _shift = 0
    #: the place in the index before which nothing is due any more
    _due_from: bytes | None = None
    #: a `DueOnDisk`
    _index: Any

    def attach(self, store: PartitionStore, codec: KeyCodec, budget: DecodedBudget) -> None:
        super().attach(store, codec, budget)
        self._store, self.index = store, index_of(self.name)
        #: of each unwritten key the due time that the index in the files has; None: no entry
        self._filed: dict[Any, int | None] = {}
        self._index = DueOnDisk(self._recent, self._read)
        self._begin()

    def _begin(self) -> None:
        self._index.restart()

    def apply(self, keys: list[K], values: list[bytes | None]) -> None:
        filed = self._filed
        for key in keys:
            if key not in filed:
                data = self.before(key)
                filed[key] = None if data is None else self._due_in(key, data)
        super().apply(keys, values)

    # The index

    def _due_in(self, key: K, data: bytes) -> int:
        """Return when a stored row is due."""
        raise NotImplementedError

    def _recent(self) -> Iterator[Entry]:
        """Yield the entries of what the files do not have: committed rows, and those of open transactions."""
        raise NotImplementedError

    def _read(self, after: bytes | None, most: int) -> list[tuple[bytes, Entry]]:
        low = self._due_from if after is None else after + b"\0"
        with closing(self._store.snapshot()) as snapshot:
            return [(place, self._entry(place, row)) for place, row in islice(snapshot.rows(self.index, low), most)]

    def _entry(self, place: bytes, row: bytes) -> Entry:
        """:raises LocalStoreFailed: the entry is damaged."""
        if row != check_of(place):
            raise self._store.damaged(f"table {self.name!r}: an entry of its index differs from its checksum")
        return decode_int(place[:INT_BYTES]) + self._shift, self.stored.codec.decode(place[INT_BYTES:])

    def _place(self, when: int, key: K) -> bytes:
        return encode_int(when - self._shift) + self.stored.codec.encode(key)

    # For `DiskState`

    def index_rows(self) -> dict[bytes, bytes | None]:
        """Return how the index in the files changes with the next write."""
        rows: dict[bytes, bytes | None] = {}
        for key, before in self._filed.items():
            data = self.stored.unwritten[key]
            now = None if data is None else self._due_in(key, data)
            if now == before:
                continue
            if before is not None:
                rows[self._place(before, key)] = None
            if now is not None:
                place = self._place(now, key)
                rows[place] = check_of(place)
        return rows

    def filed(self) -> None:
        """Note that the files have what was committed."""
        self._filed = {}
        self._index.restart()

    def refill(self) -> None:
        """Make the index of the rows in the files, in their order: at the end of a restore."""
        runs = 0
        run: dict[bytes, bytes | None] = {}
        for key, data in self.stored.rows():
            place = self._place(self._due_in(key, data), key)
            run[place] = check_of(place)
            if len(run) == _RUN:
                self._write_run(runs, run)
                runs, run = runs + 1, {}
        if runs:
            self._write_run(runs, run)
            self._merge_runs(runs + 1)
        else:
            self._store.apply({self.index: run}, None)

    def _write_run(self, number: int, run: Mapping[bytes, bytes | None]) -> None:
        self._store.apply({SORTING: {_run(number) + place: row for place, row in run.items()}}, None)

    def _merge_runs(self, runs: int) -> None:
        with closing(self._store.snapshot()) as snapshot:
            sources = [snapshot.rows(SORTING, _run(number), _run(number + 1)) for number in range(runs)]
            merged = heapq.merge(*sources, key=_without_run)
            while piece := list(islice(merged, _WRITE)):
                index = {_without_run(pair): pair[1] for pair in piece}
                batch: Mapping[str, Mapping[bytes, bytes | None]] = {
                    self.index: index,
                    SORTING: dict.fromkeys(place for place, _ in piece),
                }
                self._store.apply(batch, None)

    def index_sum(self, keys: list[K], values: list[bytes]) -> int:
        """Return the sum of what the index should have for these rows."""
        return sum(hash64(self._place(self._due_in(key, data), key)) for key, data in zip(keys, values, strict=True))

    def check_index(self, snapshot: StoreSnapshot, wanted: int) -> None:
        """Require that the index has this sum. :raises LocalStoreFailed:"""
        found = 0
        for place, row in snapshot.rows(self.index):
            self._entry(place, row)
            found += hash64(place)
        if (found - wanted) % _SUM:
            raise self._store.damaged(f"table {self.name!r}: its index differs from its rows")


class DueDiskTable(DueTable[K, V], DatedDiskTable[K, V]):
    """A table with ttl, a `Dedupe` or windows on disk."""

    whole_keys = "table with due rows"

    def attach(self, store: PartitionStore, codec: KeyCodec, budget: DecodedBudget) -> None:
        windows: Any = self if issubclass(type(self), WindowTable) else None
        self._is_window = windows is not None
        self._shift = 0 if windows is None else windows.grace
        super().attach(store, codec, budget)

    def _begin(self) -> None:
        super()._begin()
        self.count = self.stored.count

    def rollback(self) -> None:
        super().rollback()
        self._begin()

    def loaded(self) -> None:
        self._begin()

    def _due_in(self, key: K, data: bytes) -> int:
        # The key of a window says when it is due.
        return self.due(key, None if self._is_window else self.decoded(key, data))  # type: ignore[arg-type]

    def _recent(self) -> Iterator[Entry]:
        for layer in (self.stored.unwritten, self._frozen):
            yield from ((self._due_in(key, data), key) for key, data in layer.items() if data is not None)
        yield from ((self.due(key, value), key) for key, value in self._dirty.items() if value is not ABSENT)


def _run(number: int) -> bytes:
    return number.to_bytes(_RUN_BYTES, "big")


def _without_run(pair: tuple[bytes, bytes]) -> bytes:
    return pair[0][_RUN_BYTES:]


def index_names(tables: Iterable[PartitionTable[Any, Any]], on_disk: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the indexes that the files have besides the tables."""
    dated = (table for table in tables if isinstance(table, DueTable | JoinTable))
    return tuple(index_of(table.name) for table in dated if table.name in on_disk)
