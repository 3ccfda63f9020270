"""The state of a partition with tables on disk. Its files hold its tables in memory, too, so that a start is whole."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from statehold.disk.dated import DatedDiskTable
from statehold.disk.keys import KeyCodec, key_codec
from statehold.disk.port import PartitionStore, StoreClosed
from statehold.disk.stored import StoredOnDisk
from statehold.disk.tables import DiskTable
from statehold.disk.usage import ScrubNote
from statehold.errors import LocalStoreFailed
from statehold.state.digest import MODULUS, table_digest
from statehold.state.partition_table import Changes, PartitionTable
from statehold.state.state import Frozen, State
from statehold.state.stored_keys import key_decoder

#: rows that a restore writes at once, and keys of one piece
_SPILL: Final = 50_000
_PIECE: Final = 2048
#: their bytes
_SPILL_BYTES: Final = 8_000_000
_PIECE_BYTES: Final = 1_000_000
#: A snapshot keeps replaced pages in the file. A new one follows before they take this number of bytes, or part.
_GROWTH, _PART, _PAGE = 64_000_000, 8, 4096
_encode: Final = msgspec.msgpack.Encoder().encode


def codec_of(kind: Any, *, on_disk: bool) -> KeyCodec:
    """Return how the files hold keys of this type, of a table on disk or of a copy of one in memory."""
    if on_disk:
        codec = key_codec(kind)
        assert codec is not None
        return codec
    decode = key_decoder(kind)

    def encode(key: Any) -> bytes:
        return _encode([key])

    return KeyCodec(encode, lambda data: decode(data)[0], encode)


class WriteBehind:
    """Says when committed changes, which wait in memory, go to the files: a page has rows of many keys, so a larger
    write replaces fewer pages for each row, and writes a key that has changed often once.

    The partitions that a process owns share the rows and bytes that may wait. Any thread.
    """

    def __init__(
        self,
        rows: int = 50_000,
        size: int = 8_000_000,
        seconds: float = 10.0,
        *,
        most: int = 10_000,
        passed: int = 10_000,
    ) -> None:
        """`seconds`: how long a change waits at most, if a delta follows.

        `most`: rows of one partition, because its records wait for the write.

        `passed`: rows that wait to be deleted, each time that a range passes over one. Then a write costs less than
        further ranges.
        """
        self._rows, self._size, self._seconds = rows, size, seconds
        self._most, self._passed = most, passed
        self._states: weakref.WeakSet[DiskState] = weakref.WeakSet()
        #: rows that were written answer reads until the next write
        self.keeps = rows > 0

    def join(self, state: DiskState) -> None:
        self._states.add(state)

    def leave(self, state: DiskState) -> None:
        self._states.discard(state)

    def is_due(self, rows: int, size: int, seconds: float, passed: int = 0) -> bool:
        """Return whether a partition writes what waits."""
        parts = max(1, len(self._states))
        if rows >= self._most or passed >= self._passed:
            return True
        return rows * parts >= self._rows or size * parts >= self._size or seconds >= self._seconds


class DiskState(State):
    """`flush` writes to the files what has committed in Kafka since the last one, with the label of that state.

    So the files are never ahead of Kafka (rule X1): until `flush` the layers in memory answer reads.
    """

    def __init__(
        self, tables: Iterable[PartitionTable[Any, Any]], store: PartitionStore, *, track_delta: bool = False
    ) -> None:
        super().__init__(tables, track_delta=track_delta)
        self.store = store
        self.share(None)
        #: label of the state of now; None: the files have it, or the last commit record carried no delta
        self._label: bytes | None = None
        #: time of the first `settle` since the last write
        self._since: float | None = None
        #: of the last pass of the scrub over the partition's files; replaced whole, so any thread may read it
        self.scrubbed: ScrubNote | None = store.last_scrub()
        #: bytes of the changes that the files do not have yet
        self._bytes = 0
        #: rows written to the files so far
        self.written = 0
        #: of each table what the files do not have yet
        self._rows: dict[str, StoredOnDisk] = {}
        for name, table in self.tables.items():
            if isinstance(table, DiskTable):
                self._rows[name] = table.stored
            else:
                self._rows[name] = StoredOnDisk(store, name, codec_of(table.key_type, on_disk=False))
        self._dated = {name: table for name, table in self.tables.items() if isinstance(table, DatedDiskTable)}

    def share(self, behind: WriteBehind | None) -> None:
        """Let changes wait with those of other partitions. Without `behind` each `settle` writes."""
        self._behind = behind or WriteBehind(rows=0)
        self._behind.join(self)

    # Committed changes

    def commit(self, frozen: Frozen, *, delta: bool) -> None:
        self._label = None
        super().commit(frozen, delta=delta)
        for change in frozen.changes:
            self._copy(change)

    def follow(self, changes: Changes) -> None:
        self._label = None
        super().follow(changes)
        self._copy(changes)

    def load(self, changes: Changes) -> None:
        """Also write to the files, without a label, what memory should not hold."""
        super().load(changes)
        self._copy(changes)
        if self.crowded:
            self._write(None)

    def _copy(self, changes: Changes) -> None:
        """Note a change of a table in memory; a table on disk has noted its own."""
        self._bytes += sum(map(len, filter(None, changes.values)))
        if not isinstance(self.tables[changes.table], DiskTable):
            self._rows[changes.table].unwritten.update(zip(changes.keys, changes.values, strict=True))

    @property
    def crowded(self) -> bool:
        """Return whether memory holds so much that is not in the files that a restore writes it."""
        return self._bytes > _SPILL_BYTES or self._waiting > _SPILL

    @property
    def _waiting(self) -> int:
        """Return the number of rows that the files do not have yet."""
        return sum([len(rows.unwritten) for rows in self._rows.values()])

    def stored_counts(self) -> dict[str, int]:
        """Return the number of rows of each table in the files, and of each index."""
        return {name: self.store.count(name) for name in (*self.tables, *self.indexes())}

    def stored_bytes(self) -> int:
        return self.store.size()

    def decoded_bytes(self) -> int:
        """Return the estimated bytes of decoded values in memory."""
        return sum(table.decoded_bytes for table in self.tables.values() if isinstance(table, DiskTable))

    def take_reads(self) -> int:
        """Return how many values were fetched from the files since the last call."""
        total = 0
        for table in self.tables.values():
            if isinstance(table, DiskTable):
                total, table.reads = total + table.reads, 0
        return total

    def counts(self) -> dict[str, int]:
        """Return the number of keys of each table, and of the entries of each index."""
        counts = {name: len(table.stored) for name, table in self.tables.items()}
        return counts | {table.index: len(table.stored) for table in self._dated.values()}

    def settle(self, label: bytes, now: float) -> bool:
        """Take the label of what has committed, with a delta. Write it if enough waits, and return whether.

        :raises LocalStoreFailed: nothing was written.
        """
        self._label = label
        if self._since is None:
            self._since = now
        passed = sum([rows.passed for rows in self._rows.values()])
        if not self._behind.is_due(self._waiting, self._bytes, now - self._since, passed):
            return False
        self._write(label)
        return True

    def flush(self, label: bytes) -> None:
        """Write what has committed and its label, at once. :raises LocalStoreFailed: nothing was written."""
        self._write(label)

    def _write(self, label: bytes | None) -> None:
        batch = {}
        for name, rows in self._rows.items():
            if rows.unwritten:
                batch[name] = rows.packed()
        if label is not None:  # otherwise a restore makes the index at its end
            for table in self._dated.values():
                batch[table.index] = table.index_rows()
        self.store.apply(batch, label)
        self._label = self._since = None
        self._bytes = 0
        self.written += sum(map(len, batch.values()))
        keep = label is not None and self._behind.keeps
        for name, rows in self._rows.items():
            rows.written(keep=keep and isinstance(self.tables[name], DiskTable))
        for table in self._dated.values():
            table.filed()

    # Whole tables

    def load_files(self, digest: int) -> None:
        """Begin with what the files hold, whose digest the label carries."""
        for name, table in self.tables.items():
            if isinstance(table, DiskTable):
                table.proven = True
            else:
                for keys, values in _pieces(self._rows[name].rows()):
                    table.load(keys, values)
                table.loaded()
        self.digest = digest

    def loaded(self) -> None:
        """Complete a restore: write the rest, count, and compute the digest from what the files hold then."""
        self._write(None)
        total = 0
        for name, table in self.tables.items():
            if isinstance(table, DiskTable):
                table.stored.count = self.store.count(name)
                if name in self._dated:
                    self._dated[name].refill()
                table.loaded()
            else:
                table.loaded()
            total += sum(table_digest(name, keys, values) for keys, values in _pieces(self._rows[name].rows()))
        self.digest = total % MODULUS

    def pieces(self, size: int) -> Iterator[Changes]:
        """Yield all keys and values of the last commit with a delta, or of later ones if the files grow (rule X4).

        :raises LocalStoreFailed:
        """
        if self._label is not None:
            self._write(self._label)
        view = _View(self)
        return _FilePieces(view, _read(view, self._rows, self._dated, size))

    def differs(self, cause: str) -> None:
        """:raises LocalStoreFailed: the files hold another state than the commit record; the next start restores."""
        raise self.store.damaged(cause)

    def codecs(self) -> dict[str, KeyCodec]:
        """Return how the files hold the keys of each table."""
        return {name: rows.codec for name, rows in self._rows.items()}

    def indexes(self) -> list[str]:
        """Return the names of the indexes in the files."""
        return [table.index for table in self._dated.values()]

    def close(self, *, flush: bool) -> None:
        """With `flush` also write what waits, so that the next start reads no delta."""
        self._behind.leave(self)
        label, self._label = self._label, None
        if flush and label is not None:
            with suppress(LocalStoreFailed, StoreClosed):  # the next start reads the deltas
                self._write(label)
        self.store.close(flush=flush)

    def before(self, changes: Changes) -> list[bytes | None]:
        table = self.tables[changes.table]
        return table.before_each(changes.keys) if isinstance(table, DiskTable) else super().before(changes)


class _View:
    """A snapshot of the files, which a later one replaces when they have grown."""

    def __init__(self, state: DiskState) -> None:
        self._state = state
        #: there was one snapshot only
        self.exact = True
        self._begin()

    def _begin(self) -> None:
        self.snapshot, self._most = self._state.store.snapshot(), most_rows(self._state.store)
        self._before = self._state.written

    def renewed(self) -> bool:
        """Replace the snapshot if much was written since; return whether."""
        if self._state.written - self._before <= self._most:
            return False
        self.snapshot.close()
        self.exact = False
        self._begin()
        return True


class _FilePieces(Iterator[Changes]):
    """The rows of all tables: of one snapshot of the files, or of several if the files grow meanwhile.

    A snapshot keeps replaced pages in the file. A later one may have keys that were born since, which deltas hold, too.
    """

    def __init__(self, view: _View, pieces: Iterator[Changes]) -> None:
        # The generator has no reference to this object, so it ends with it, and closes the snapshot.
        self._view, self._pieces = view, pieces

    def __next__(self) -> Changes:
        return next(self._pieces)

    @property
    def exact(self) -> bool:
        return self._view.exact


def _read(
    view: _View, tables: Mapping[str, StoredOnDisk], indexes: Mapping[str, DatedDiskTable[Any, Any]], size: int
) -> Iterator[Changes]:
    try:
        for name, rows in tables.items():
            dated, indexed, pairs = indexes.get(name), 0, rows.rows_of(view.snapshot)
            while piece := next(_pieces(pairs, size), None):
                keys, values = piece
                if dated is not None:
                    indexed += dated.index_sum(keys, values)
                yield Changes(name, keys, values)
                if view.renewed():
                    pairs = rows.rows_of(view.snapshot, keys[-1])
            if dated is not None and view.exact:
                dated.check_index(view.snapshot, indexed)
    finally:
        view.snapshot.close()


def most_rows(store: PartitionStore) -> int:
    """Return how many rows may be written while a snapshot of now is open: each may replace a page."""
    return min(max(_GROWTH, store.size() // _PART), store.room() // 2) // _PAGE


def _pieces(pairs: Iterator[tuple[Any, bytes]], size: int = _PIECE) -> Iterator[tuple[list[Any], list[Any]]]:
    keys: list[Any] = []
    values: list[bytes] = []
    length = 0
    for key, value in pairs:
        keys.append(key)
        values.append(value)
        length += len(value)
        if len(keys) == size or length > _PIECE_BYTES:
            yield keys, values
            keys, values, length = [], [], 0
    if keys:
        yield keys, values
