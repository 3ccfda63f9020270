"""Keeps the newest value of each key that one task has read, so that the shuffle moves keys instead of entries.

Uses a dict per table and adds whole entries, so that no Python code runs per key. Passes the rows to the JVM whenever
it holds `limit` bytes, so that a task's memory does not grow with the state. The fold in the JVM chooses between the
values of several tasks, or of several windows of one task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from statehold.common.decoding import UNREADABLE
from statehold.snapshot.format import frame

#: Limit in bytes of keys and values from the changelog; Python's objects need about three times as much.
WINDOW: Final = 64_000_000
#: Limit for chunks; small, because chunks contain each key only once.
CHUNKS: Final = 4_000_000
#: Table name of a report; no table has it.
REPORT: Final = ""
_BATCH_ROWS: Final = 20_000
_BATCH_BYTES: Final = 16_000_000
#: Overhead of a key in bytes.
_KEY: Final = 40

_entry = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw], list[bytes | None]]).decode


class Newest:
    """The newest values of one range of one topic partition, read in order."""

    def __init__(self, partition: int, limit: int) -> None:
        self._partition, self._limit = partition, limit
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

    def take(self, rank: int) -> Iterator[pa.RecordBatch]:
        """Yield and remove everything as rows of `unpack.SCHEMA`.

        `rank` is not below any transaction in it, and not above any later one.
        """
        tables, held = self._tables, self._held
        self._tables, self._held, self._since = {}, 0, 0
        rows = sum(map(len, tables.values()))
        most = max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(held, 1)))
        for name, table in tables.items():
            keys, values = list(table), list(table.values())
            for low in range(0, len(keys), most):
                yield rows_of(self._partition, name, keys[low : low + most], values[low : low + most], rank)


def _size(table: dict[bytes, bytes | None]) -> int:
    return sum(map(len, table)) + sum(map(len, filter(None, table.values()))) + _KEY * len(table)


def rows_of(partition: int, table: str, keys: list[bytes], values: list[Any], rank: int) -> pa.RecordBatch:
    """Return one batch of `unpack.SCHEMA`."""
    count = len(keys)
    columns = [
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.repeat(pa.scalar(table, pa.string()), count),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.repeat(pa.scalar(rank, pa.int64()), count),
    ]
    return pa.record_batch(columns, names=["partition", "table", "key", "value", "rank"])
