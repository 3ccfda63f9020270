"""Keeps the newest value of each key that one task has read, so that the shuffle moves keys instead of entries.

Collects entries as Arrow columns and groups them by key when they are many: 0.2 microseconds for each entry. A dict of
many keys takes 0.5 to 0.8, because each update misses the processor's caches several times. Hands the keys over when
they are still many after that, so that a task's memory does not grow with the state. `merge` chooses between the
values of several tasks, or of several windows of one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statehold.common.decoding import UNREADABLE
from statehold.snapshot.format import frame

#: Bytes that a task collects at first, and at most. The limit doubles when a quarter of it is newest values: so most
#: of what is grouped has not been grouped before, and a state of a million keys leaves the task once and not with each
#: window. Grouping takes half as much again.
WINDOW: Final = 64_000_000
_MOST: Final = 512_000_000
#: Parts of a partition's keys, by the hash of a key. `merge` holds some of them at a time.
BUCKETS: Final = 64
#: Table name of a report; no table has it.
REPORT: Final = ""
#: Keys that become a part of a column together, because each part has its own costs.
_PART: Final = 20_000
#: Bytes of a value's Python object in addition to its own.
_VALUE: Final = 40

_entry = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw], list[bytes | None]]).decode
#: Of keys that are strings, the most frequent kind: takes less than half of the time.
_text_entry = msgspec.msgpack.Decoder(tuple[str, list[str], list[bytes | None]]).decode
_text_present = msgspec.msgpack.Decoder(tuple[str, list[str], list[bytes]]).decode
_entry_table = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw, msgspec.Raw]).decode
_encode = msgspec.msgpack.Encoder().encode
_TABLE: Final = b"table"
#: Keys as msgpack; values as stored, null for a deleted key.
Columns = tuple[pa.Array, pa.Array]
#: Keys of one table: strings if all of them are, else msgpack.
Keys = list[str] | list[bytes]


class KeyBlock(NamedTuple):
    """Some keys of one bucket with their newest values, as they travel from one task to another."""

    partition: int
    bucket: int
    #: Not below any transaction in it, and not above any later one.
    rank: int
    #: Of the stretch that it was read from.
    stretch: int
    #: `packed`; or a report if the bucket is -1.
    data: bytes


def packed(table: str, columns: Columns) -> bytes:
    """Encode keys and values of a table."""
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())], metadata={_TABLE: table.encode()})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as stream:
        stream.write_batch(pa.record_batch(list(columns), schema=schema))
    return bytes(out.getvalue())


def unpacked(data: bytes) -> tuple[str, Columns]:
    """Decode what `packed` encoded."""
    with pa.ipc.open_stream(data) as stream:
        batch = stream.read_next_batch()
        return stream.schema.metadata[_TABLE].decode(), (batch.column(0), batch.column(1))


def latest(parts: Iterable[Columns]) -> Columns:
    """Return the last value of each key of these parts, which follow each other."""
    chunks, values = zip(*parts, strict=True)
    keys, rows = _last_rows(chunks)
    return keys, pa.concat_arrays(values).take(rows)


def _last_rows(parts: Sequence[pa.Array]) -> tuple[pa.Array, pa.Array]:
    """Return each key of these parts and the number of its last row."""
    keys = pa.chunked_array(parts)
    rows = pa.table({"key": keys, "row": pc.indices_nonzero(pa.repeat(True, len(keys)))})
    found = rows.group_by("key", use_threads=False).aggregate([("row", "max")])
    return found["key"].combine_chunks(), found["row_max"].combine_chunks()


class Newest:
    """The newest values of one range of one topic partition, read in order."""

    def __init__(self, limit: int = WINDOW, most: int = _MOST) -> None:
        self._limit, self._most = limit, most
        self._tables: dict[str, _Written] = {}
        #: Bytes collected.
        self._held = 0

    @property
    def crowded(self) -> bool:
        """Return True if the newest values alone are many; older ones are forgotten before."""
        if self._held < self._limit:
            return False
        self._held = sum(each.forget_older() for each in self._tables.values())
        while self._held >= self._limit // 4 and self._limit < self._most:
            self._limit *= 2
        return self._held >= self._limit // 2

    def add(self, raw: msgspec.Raw) -> int:
        """Add an entry of a delta or a chunk. Return its number of keys.

        :raises frame.BadFrame: the bytes are not an entry.
        """
        name, keys, values = decoded(raw)
        self._tables.setdefault(name, _Written()).add(keys, values)
        self._held += len(memoryview(raw)) + _VALUE * len(keys)
        return len(keys)

    def rows(self) -> Iterator[tuple[str, Keys, list[bytes | None]]]:
        """Yield and remove everything: table, keys and their newest values."""
        tables, self._tables, self._held = self._tables, {}, 0
        for name, written in tables.items():
            yield name, *written.rows()

    def take(self) -> Iterator[tuple[int, bytes]]:
        """Yield and remove everything: the bucket, and `packed` keys and values of one table."""
        tables, self._tables, self._held = self._tables, {}, 0
        for name, written in tables.items():
            keys, values = written.newest()
            buckets = np.fromiter(map(crc32, keys.to_pylist()), np.uint32, len(keys)) % BUCKETS
            order = np.argsort(buckets.astype(np.uint8), kind="stable")  # a radix sort
            ends = np.bincount(buckets, minlength=BUCKETS).cumsum()
            keys, values = keys.take(pa.array(order)), values.take(pa.array(order))
            for bucket, (low, high) in enumerate(pairwise((0, *ends.tolist()))):
                if low < high:
                    yield bucket, packed(name, (keys.slice(low, high - low), values.slice(low, high - low)))


def decoded(raw: msgspec.Raw) -> tuple[str, Keys, list[bytes | None]]:
    """Return table, keys and values of an entry.

    :raises frame.BadFrame: the bytes are not an entry.
    """
    try:
        name, keys, values = _text_entry(raw)
    except UNREADABLE:  # keys of another type, mostly
        return decoded_packed(raw)
    if len(keys) != len(values) or name == REPORT:
        raise _uneven(name, keys, values)
    return name, keys, values


def decoded_packed(raw: msgspec.Raw) -> tuple[str, list[bytes], list[bytes | None]]:
    """Return as `decoded` an entry with its keys as msgpack. Raises as `decoded`."""
    try:
        name, found, values = _entry(raw)
    except UNREADABLE as error:
        raise frame.BadFrame(f"entry: {error}") from error
    keys = list(map(bytes, found))
    if len(keys) != len(values) or name == REPORT:
        raise _uneven(name, keys, values)
    return name, keys, values


def present(raw: msgspec.Raw) -> tuple[str, Keys, list[bytes]]:
    """Return as `decoded` an entry without deleted keys. :raises frame.BadFrame: it has one, or is no entry."""
    found: Any
    try:
        found = _text_present(raw)
    except UNREADABLE:  # as in `decoded`
        found = decoded(raw)
        if None in found[2]:
            raise frame.BadFrame(f"table {found[0]!r}: a chunk has deleted keys") from None
    name, keys, values = found
    if len(keys) != len(values) or name == REPORT:
        raise _uneven(name, keys, values)
    return name, keys, values


def table_of(raw: msgspec.Raw) -> str:
    """Return the table of an entry. :raises frame.BadFrame: the bytes are not an entry."""
    try:
        return _entry_table(raw)[0]
    except UNREADABLE as error:
        raise frame.BadFrame(f"entry: {error}") from error


def _uneven(name: str, keys: Keys, values: Sequence[bytes | None]) -> frame.BadFrame:
    return frame.BadFrame(f"table {name!r}: {len(keys)} keys, {len(values)} values")


def as_msgpack(keys: Keys) -> list[bytes]:
    """Return keys as msgpack."""
    found: Any = keys
    return list(map(_encode, found)) if found and isinstance(found[0], str) else found


class _Written:
    """Keys and values of one table, in the order in which they were written."""

    def __init__(self) -> None:
        #: Keys are strings as long as all of them are, else msgpack: parts of the column, and its next part.
        self._parts: list[pa.Array] = []
        self._keys: list[Any] = []
        self._type = pa.string()
        #: Python's objects, because most of them are dropped soon.
        self._values: list[bytes | None] = []

    def add(self, keys: Keys, values: list[bytes | None]) -> None:
        if keys and isinstance(keys[0], bytes):
            self._pack()
        elif self._type == pa.binary():
            keys = as_msgpack(keys)
        self._keys += keys
        self._values += values
        if len(self._keys) >= _PART:
            self._end_part()

    def forget_older(self) -> int:
        """Keep the newest value of each key. Return the bytes of keys and values."""
        self._end_part()
        keys, rows = _last_rows(self._parts)
        self._parts = [keys]
        self._values = list(map(self._values.__getitem__, rows.to_pylist()))
        return int(keys.nbytes) + sum(map(len, filter(None, self._values))) + _VALUE * len(self._values)

    def rows(self) -> tuple[Keys, list[bytes | None]]:
        """Return each key with its newest value."""
        self.forget_older()
        return self._parts[0].to_pylist(), self._values

    def newest(self) -> Columns:
        """Return each key, as msgpack, with its newest value."""
        self.forget_older()
        self._pack()
        return self._parts[0], pa.array(self._values, pa.binary())

    def _pack(self) -> None:
        """Keep all keys as msgpack from now on."""
        self._end_part()
        if self._type == pa.string():
            self._type = pa.binary()
            self._parts = [pa.array(map(_encode, keys.to_pylist()), pa.binary()) for keys in self._parts]

    def _end_part(self) -> None:
        if self._keys or not self._parts:
            self._parts.append(pa.array(self._keys, self._type))
            self._keys = []
