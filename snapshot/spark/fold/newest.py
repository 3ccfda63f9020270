"""The newest value of each key, as far as one task has seen: what leaves it for the shuffle is keys, not entries.

A dict per table, filled whole entries at a time, so nothing of it runs per key in Python. It is given up to the JVM
whenever it holds `limit` bytes, so a task's memory does not grow with the state; the fold in the JVM decides between
what several tasks, or several windows of one, tell of a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from statehold.common.decoding import UNREADABLE
from statehold.snapshot.format import frame

#: bytes of keys and values that increments are gathered to; as Python's objects they are about three times that
WINDOW: Final = 64_000_000
#: chunks name each key once: nothing is gained by gathering them
CHUNKS: Final = 4_000_000
#: the table name of a report: no table has it
REPORT: Final = ""
_BATCH_ROWS: Final = 20_000
_BATCH_BYTES: Final = 16_000_000
#: what a key costs besides its bytes
_KEY: Final = 40

_entry = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw], list[bytes | None]]).decode


class Newest:
    """Of one stretch of one topic partition, read in order."""

    def __init__(self, partition: int, limit: int) -> None:
        self._partition, self._limit = partition, limit
        self._tables: dict[str, dict[bytes, bytes | None]] = {}
        #: what is held, at least about; bytes that came since it was counted
        self._held = self._since = 0

    @property
    def crowded(self) -> bool:
        if self._held < self._limit and self._since >= self._limit:
            self._held, self._since = sum(map(_size, self._tables.values())), 0  # values may have grown
        return self._held >= self._limit

    def add(self, raw: msgspec.Raw) -> int:
        """An entry of a part or a chunk; how many keys it has.

        :raises frame.BadFrame: it is none.
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
        """All that is held, as rows of `unpack.SCHEMA`; nothing is held afterwards.

        `rank` is not below the number of any transaction that is in it, nor above that of any that comes later.
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
    """One batch of `unpack.SCHEMA`."""
    count = len(keys)
    columns = [
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.repeat(pa.scalar(table, pa.string()), count),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.repeat(pa.scalar(rank, pa.int64()), count),
    ]
    return pa.record_batch(columns, names=["partition", "table", "key", "value", "rank"])
