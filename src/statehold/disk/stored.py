"""The committed values of a table on disk: its rows in the files, and over them what was committed since."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice, repeat
from typing import Any, Final, NamedTuple

import msgspec

from statehold.disk.keys import NO_KEY, KeyCodec
from statehold.disk.port import PartitionStore, StoreSnapshot
from statehold.disk.rows import LONGEST, DamagedRow, bodies, check_of, packed_rows, place_of, unpacked, value_of
from statehold.state.digest import table_digest

_ABSENT: Final[Any] = object()
#: bytes of the values of one piece of a scan
_PIECE_BYTES: Final = 1_000_000


class Scanned(NamedTuple):
    """Some rows of a table: their number and the sum of their hashes. `last` is the place of the last one.

    Entries of an index have the digest 0.
    """

    table: str
    rows: int
    digest: int
    last: bytes


def scan(
    codecs: Mapping[str, KeyCodec],
    indexes: Sequence[str],
    snapshot: StoreSnapshot,
    size: int,
    after: tuple[str, bytes] | None = None,
) -> Iterator[Scanned]:
    """Read the rows of all tables, then the entries of `indexes`, check each, and yield them in pieces of `size`.

    `after`: begin behind this place of this table. :raises DamagedRow: Otherwise as `PartitionStore.get`.
    """
    names = [*codecs, *indexes]
    for name in names[names.index(after[0]) if after else 0 :]:
        low = after[1] + b"\0" if after and name == after[0] else None
        rows = snapshot.rows(name, low)
        while piece := list(_piece(rows, size)):
            if name not in codecs:
                if any(row != check_of(place) for place, row in piece):
                    raise DamagedRow(f"{name!r}: an entry differs from its checksum")
                yield Scanned(name, len(piece), 0, piece[-1][0])
                continue
            keys, values = [], []
            for place, row in piece:
                try:
                    key, value = unpacked(place, row)
                    keys.append(codecs[name].decode(key))
                except (DamagedRow, ValueError, msgspec.DecodeError) as error:
                    raise DamagedRow(f"table {name!r}: {error}") from error
                values.append(value)
            yield Scanned(name, len(keys), table_digest(name, keys, values), piece[-1][0])


def _piece(rows: Iterator[tuple[bytes, bytes]], size: int) -> Iterator[tuple[bytes, bytes]]:
    length = 0
    for pair in islice(rows, size):
        yield pair
        length += len(pair[1])
        if length > _PIECE_BYTES:
            return


class StoredOnDisk(Mapping[Any, bytes]):
    """Stands for the dict `PartitionTable.stored`. The partition's thread writes `unwritten`; any thread may read."""

    def __init__(self, store: PartitionStore, table: str, codec: KeyCodec) -> None:
        self._store, self._table, self.codec = store, table, codec
        #: committed in Kafka and not yet in the files; None: deleted
        self.unwritten: dict[Any, bytes | None] = {}
        #: what the last write has written, because a key that has changed often changes again soon
        self.recent: dict[Any, bytes | None] = {}
        self.count = store.count(table)
        #: rows that wait to be deleted, each time that a range has passed over one since the last write
        self.passed = 0

    def get(self, key: Any, default: Any = None) -> Any:
        data = self.unwritten.get(key, _ABSENT)
        if data is _ABSENT and (data := self.recent.get(key, _ABSENT)) is _ABSENT:
            data = self._fetch(key)
        return default if data is None else data

    def get_each(self, keys: list[Any]) -> list[bytes | None]:
        """Return the values of many keys, None for one that is not there."""
        found = list(map(self.unwritten.get, keys, map(self.recent.get, keys, repeat(_ABSENT))))
        absent = [key for key, value in zip(keys, found, strict=True) if value is _ABSENT]
        if not absent:
            return found
        fetched = self._fetch_each(absent)
        if len(absent) == len(keys):
            return fetched
        rest = iter(fetched)
        return [next(rest) if value is _ABSENT else value for value in found]

    def written(self, *, keep: bool) -> None:
        """Note that the files have `unwritten` now. `keep`: it answers reads until the next write."""
        self.recent = self.unwritten if keep else {}
        self.unwritten, self.passed = {}, 0

    def __getitem__(self, key: Any) -> bytes:
        data: bytes | None = self.get(key)
        if data is None:
            raise KeyError(key)
        return data

    def __contains__(self, key: object) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.pairs())

    def items(self) -> Any:
        return self.pairs()

    def values(self) -> Any:
        return (value for _, value in self.pairs())

    def pairs(self) -> Iterator[tuple[Any, bytes]]:
        """Yield keys and stored values as of now, in no defined order."""
        hidden = dict(self.unwritten)
        written = (pair for pair in self.rows() if pair[0] not in hidden)
        return chain(written, ((key, value) for key, value in hidden.items() if value is not None))

    def rows(self) -> Iterator[tuple[Any, bytes]]:
        """Yield what the files hold."""
        with closing(self._store.snapshot()) as snapshot:
            yield from self.rows_of(snapshot)

    def rows_of(self, snapshot: StoreSnapshot, after: Any = _ABSENT) -> Iterator[tuple[Any, bytes]]:
        """Yield what a snapshot holds, in the order of places; behind that of `after`."""
        decode = self.codec.decode
        low = None if after is _ABSENT else place_of(self.codec.encode(after)) + b"\0"
        for place, row in snapshot.rows(self._table, low):
            key, value = self.unpack(place, row)
            yield decode(key), value

    def between(self, low: Any, high: Any, above: Iterable[Any], *, reverse: bool) -> Iterator[Any]:
        """Yield the keys with low <= key < high of the files, and those of `above`, in order, each once."""
        cut = self.codec.cut
        first, last = (None if bound is None else cut(bound) for bound in (low, high))
        held = iter(()) if last == b"" else self.held(first or None, last, reverse=reverse)
        previous = _ABSENT
        for key in heapq.merge(held, above, reverse=reverse):
            if key != previous:
                yield key
            previous = key

    def held(self, low: bytes | None, high: bytes | None, *, reverse: bool = False) -> Iterator[Any]:
        """Yield the keys of the files with low <= place < high, in order; for tables whose keys are not cut."""
        with closing(self._store.snapshot()) as snapshot:
            for place, _ in snapshot.rows(self._table, low, high, reverse=reverse):
                yield self.codec.decode(place)

    def packed(self) -> dict[bytes, bytes | None]:
        """Return the rows of `unwritten` by their places; None deletes one."""
        return packed_rows(list(map(self.codec.encode, self.unwritten)), list(self.unwritten.values()))

    def unpack(self, place: bytes, row: bytes) -> tuple[bytes, bytes]:
        """Return the encoded key and the value of a row. :raises LocalStoreFailed: it is damaged."""
        try:
            return unpacked(place, row)
        except DamagedRow as error:
            raise self._damaged(error) from error

    def _fetch_each(self, keys: list[Any]) -> list[bytes | None]:
        try:
            places = list(map(self.codec.encode, keys))
        except NO_KEY:
            return list(map(self._fetch, keys))
        if max(map(len, places)) >= LONGEST:
            return list(map(self._fetch, keys))
        rows = self._store.get_each(self._table, places)
        try:
            return bodies(places, rows)
        except DamagedRow as error:
            raise self._damaged(error) from error

    def _fetch(self, key: Any) -> bytes | None:
        try:
            place = place_of(self.codec.encode(key))
        except NO_KEY:
            return None  # a value of another type is no key
        row = self._store.get(self._table, place)
        if row is None:
            return None
        try:
            return value_of(place, row)
        except DamagedRow as error:
            raise self._damaged(error) from error

    def _damaged(self, error: DamagedRow) -> Exception:
        return self._store.damaged(f"table {self._table!r}: {error}")
