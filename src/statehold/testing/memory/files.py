"""The files of tables on disk, in memory: for the driver and the simulation, with crashes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

from statehold.disk.port import Batch, StoreClosed
from statehold.disk.usage import ScrubNote
from statehold.errors import LocalStoreFailed
from statehold.snapshot.format.partition_identity import Place

#: what one `apply` has changed: rows and label as they were before
_Undo = tuple[dict[str, dict[bytes, bytes | None]], bytes | None]


class PartitionFiles:
    """What a disk holds of one partition; it outlives processes."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {}
        #: the places of a table in order, since its last write
        self._places: dict[str, list[bytes]] = {}
        #: snapshots may have these dicts, so a write copies them first
        self._shared: set[str] = set()
        self.label: bytes | None = None
        self.scrub: ScrubNote | None = None
        #: before each of the newest writes
        self._undo: list[_Undo] = []

    def write(self, batch: Batch, label: bytes | None) -> None:
        before: dict[str, dict[bytes, bytes | None]] = {}
        for table, rows in batch.items():
            before[table] = self._set(table, rows)
        self._undo = [*self._undo[-20:], (before, self.label)]
        self.label = label

    def lose(self, writes: int) -> None:
        """Lose the newest writes, as a disk that had not written them when its machine stopped."""
        for _ in range(min(writes, len(self._undo))):
            before, self.label = self._undo.pop()
            for table, rows in before.items():
                self._set(table, rows)

    def clear(self) -> None:
        self.tables, self._places, self.label, self._undo = {}, {}, None, []

    def held(self, table: str) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Return the rows of a table as of now, and their places in order."""
        rows = self.tables.get(table, {})
        if table not in self._places:
            self._places[table] = sorted(rows)
        self._shared.add(table)
        return rows, self._places[table]

    def _set(self, table: str, rows: Mapping[bytes, bytes | None]) -> dict[bytes, bytes | None]:
        """Write rows; return what was there."""
        held = self.tables.setdefault(table, {})
        if table in self._shared:
            self._shared.discard(table)
            held = self.tables[table] = dict(held)
        before = {place: held.get(place) for place in rows}
        for place, row in rows.items():
            if row is None:
                held.pop(place, None)
            else:
                held[place] = row
        self._places.pop(table, None)
        return before


class MemoryStores:
    """`disk.port.Stores` of one machine. `on_write` is called with "before" and "after" each write: it may raise."""

    def __init__(self) -> None:
        self.files: dict[int, PartitionFiles] = {}
        #: raises in the place of each write, as a full disk does
        self.full = False
        self.on_write: Callable[[str], None] = lambda moment: None

    def open(self, place: Place, tables: Sequence[str]) -> MemoryStore:
        return MemoryStore(self, self.files.setdefault(place.partition, PartitionFiles()), place)


class MemoryStore:
    """`disk.port.PartitionStore`."""

    def __init__(self, stores: MemoryStores, files: PartitionFiles, place: Place) -> None:
        self._stores, self._files, self._place = stores, files, place
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def label(self) -> bytes | None:
        return self._open().label

    def get(self, table: str, place: bytes) -> bytes | None:
        return self._open().tables.get(table, {}).get(place)

    def get_each(self, table: str, places: list[bytes]) -> list[bytes | None]:
        return list(map(self._open().tables.get(table, {}).get, places))

    def count(self, table: str) -> int:
        return len(self._open().tables.get(table, {}))

    def snapshot(self) -> MemorySnapshot:
        files = self._open()
        return MemorySnapshot({table: files.held(table) for table in files.tables}, files.label)

    def apply(self, batch: Batch, label: bytes | None) -> None:
        files = self._open()
        assert all(place for rows in batch.values() for place in rows), "LMDB has no empty place"
        self._stores.on_write("before")
        if self._stores.full:
            raise self._failure("write: No space left on device")
        files.write(batch, label)
        self._stores.on_write("after")

    def clear(self) -> None:
        self._open().clear()

    def size(self) -> int:
        return sum(len(place) + len(row) for rows in self._open().tables.values() for place, row in rows.items())

    def used(self) -> int:
        return self.size()

    def room(self) -> int:
        return 1 << 40

    def damaged(self, cause: str) -> LocalStoreFailed:
        if not self._is_closed:
            self._files.clear()
        return self._failure(f"trust: {cause}; the files are dropped, and the state is restored from Kafka")

    def scrubbed(self, note: ScrubNote) -> ScrubNote:
        self._files.scrub = note.after(self._files.scrub)
        return self._files.scrub

    def last_scrub(self) -> ScrubNote | None:
        return self._files.scrub

    def proven(self) -> None:
        """Nothing is counted."""

    def close(self, *, flush: bool = True) -> None:
        self._is_closed = True

    def _open(self) -> PartitionFiles:
        if self._is_closed:
            raise StoreClosed
        return self._files

    def _failure(self, cause: str) -> LocalStoreFailed:
        place = self._place
        return LocalStoreFailed(
            f"{cause}. Nothing is lost. Next: free space; `statehold retry {place.partition}` retries now",
            topic=place.names.input,
            partition=place.partition,
        )


class MemorySnapshot:
    """`disk.port.StoreSnapshot`."""

    def __init__(self, tables: Mapping[str, tuple[dict[bytes, bytes], list[bytes]]], label: bytes | None) -> None:
        self._tables, self._label = tables, label

    def label(self) -> bytes | None:
        return self._label

    def rows(
        self, table: str, low: bytes | None = None, high: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        held, places = self._tables.get(table, ({}, []))
        begin = 0 if low is None else bisect_left(places, low)
        end = len(places) if high is None else bisect_left(places, high)
        chosen = places[begin:end]
        for place in reversed(chosen) if reverse else chosen:
            yield place, held[place]

    def close(self) -> None:
        """Nothing is open."""
