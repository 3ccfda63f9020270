"""Keeps the newest value of each key that one task has read, so that the shuffle moves keys instead of entries.

Uses a dict per table and adds whole entries, so that no Python code runs per key. Hands the keys over whenever it holds
`limit` bytes, so that a task's memory does not grow with the state. `merge` chooses between the values of several
tasks, or of several windows of one task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from statehold.common.decoding import UNREADABLE
from statehold.snapshot.format import frame

#: Limit in bytes of keys and values from the changelog; Python's objects need about three times as much.
WINDOW: Final = 64_000_000
#: Parts of a partition's keys, by the hash of a key. `merge` holds some of them at a time.
BUCKETS: Final = 256
#: Table name of a report; no table has it.
REPORT: Final = ""
#: Overhead of a key in bytes.
_KEY: Final = 40

_entry = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw], list[bytes | None]]).decode
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, list[bytes], list[bytes | None]]).decode


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


def packed(table: str, keys: list[bytes], values: list[bytes | None]) -> bytes:
    """Encode keys (msgpack) and values (as stored; None is deleted) of a table."""
    return _encode((table, keys, values))


def unpacked(data: bytes) -> tuple[str, list[bytes], list[bytes | None]]:
    """Decode what `packed` encoded: table, keys, values."""
    return _decode(data)


class Newest:
    """The newest values of one range of one topic partition, read in order."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tables: dict[str, dict[bytes, bytes | None]] = {}
        #: Approximate bytes held; bytes added since they were counted.
        self._held = self._since = 0

    @property
    def crowded(self) -> bool:
        if self._held < self._limit and self._since >= self._limit:
            self._held, self._since = sum(map(_size, self._tables.values())), 0  # values may have grown
        return self._held >= self._limit

    def add(self, raw: msgspec.Raw) -> int:
        """Add an entry of a delta or a chunk. Return its number of keys.

        :raises frame.BadFrame: the bytes are not an entry.
        """
        try:
            name, keys, values = _entry(raw)
        except UNREADABLE as error:
            raise frame.BadFrame(f"entry: {error}") from error
        count = len(keys)
        if count != len(values) or name == REPORT:
            raise frame.BadFrame(f"table {name!r}: {count} keys, {len(values)} values")
        table = self._tables.setdefault(name, {})
        before, size = len(table), len(memoryview(raw)) + _KEY * count
        table.update(zip(map(bytes, keys), values, strict=True))
        if count:
            self._held += size * (len(table) - before) // count
        self._since += size
        return count

    def take(self) -> Iterator[tuple[int, bytes]]:
        """Yield and remove everything: the bucket, and `packed` keys and values of one table."""
        tables, self._tables, self._held, self._since = self._tables, {}, 0, 0
        for name, table in tables.items():
            keys: list[list[bytes]] = [[] for _ in range(BUCKETS)]
            values: list[list[bytes | None]] = [[] for _ in range(BUCKETS)]
            for key, value in table.items():
                bucket = crc32(key) % BUCKETS
                keys[bucket].append(key)
                values[bucket].append(value)
            for bucket in filter(keys.__getitem__, range(BUCKETS)):
                yield bucket, packed(name, keys[bucket], values[bucket])


def _size(table: dict[bytes, bytes | None]) -> int:
    return sum(map(len, table)) + sum(map(len, filter(None, table.values()))) + _KEY * len(table)
