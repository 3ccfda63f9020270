"""Merges what several tasks have read of one partition: the newest value of each key, and the sums of the digest.

Does not use Spark. A task writes the blocks that arrive to a temporary file, and reads some buckets at a time from it.
So its memory grows neither with the state nor with the number of deltas.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import IO, Final

import pyarrow as pa

from statehold.snapshot.spark.fold.newest import REPORT, Columns, KeyBlock, latest, unpacked
from statehold.snapshot.spark.fold.proof import Sums
from statehold.snapshot.spark.fold.report import decode_report

#: Partition, table, keys (msgpack) and values (as stored) of some keys; or a report as the only value of `REPORT`.
#: Of a partition whose `changes` are asked for, None is the value of a deleted key.
Rows = tuple[int, str, list[bytes], list[bytes]]
#: Bytes of blocks that are merged at a time, and bytes that stay in memory until then.
_AT_A_TIME: Final = 48_000_000
_IN_MEMORY: Final = 64_000_000
#: Place of a block in the file, in the order in which blocks are merged: rank, stretch, offset, length; its bucket.
_Located = tuple[int, int, int, int, int]


def merge(blocks: Iterable[KeyBlock], changes: Collection[int] = ()) -> Iterator[Rows]:
    """Yield the reports and then the state of a partition, bucket by bucket, without deleted keys.

    Of partitions in `changes` the blocks are no state, but the changes of one, so deleted keys are among the rows.
    Without its rows if a report has a finding, because then they are not the state.
    """
    places: dict[int, list[_Located]] = {}
    partition, sound = -1, True
    with tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=scratch()) as file:
        for partition, bucket, rank, stretch, data in blocks:
            if bucket < 0:
                sound = sound and not decode_report(data).finding
                yield partition, REPORT, [b""], [data]
                continue
            places.setdefault(bucket, []).append((rank, stretch, file.tell(), len(data), bucket))
            file.write(data)
        if sound:
            for some in _portions(places):
                yield from _merged(partition, file, some, deleted=partition in changes)


def _portions(places: dict[int, list[_Located]]) -> Iterator[list[_Located]]:
    """Yield the blocks of whole buckets, as many as are merged at a time, in order."""
    some: list[_Located] = []
    for bucket in sorted(places):
        some += places[bucket]
        if sum(length for *_, length, _ in some) >= _AT_A_TIME:
            yield sorted(some)
            some = []
    if some:
        yield sorted(some)


def _merged(partition: int, file: IO[bytes], some: Sequence[_Located], *, deleted: bool) -> Iterator[Rows]:
    tables: dict[str, list[Columns]] = {}
    buckets: dict[str, list[int]] = {}
    for _, _, offset, length, bucket in some:
        file.seek(offset)
        table, columns = unpacked(file.read(length))
        tables.setdefault(table, []).append(columns)
        buckets.setdefault(table, []).append(bucket)
    for table, parts in tables.items():
        if len(parts) == len({*buckets[table]}):  # the keys of one block are different ones
            keys, values = map(pa.concat_arrays, zip(*parts, strict=True))
        else:
            keys, values = latest(parts)
        if values.null_count and not deleted:
            held = values.is_valid()
            keys, values = keys.filter(held), values.filter(held)
        if len(keys):
            yield partition, table, keys.to_pylist(), values.to_pylist()


def scratch() -> str | None:
    """Return Spark's folder for temporary files on this machine, which Spark gives to its Python workers."""
    found = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return found if os.path.isdir(found) else None


def summed(rows: Iterable[Rows]) -> Iterator[tuple[int, str, Sums, bytes]]:
    """Yield partition, table and the sums of the digest of each table; and each report, for the table `REPORT`."""
    sums: dict[tuple[int, str], Sums] = {}
    for partition, table, keys, values in rows:
        if table == REPORT:
            yield partition, table, Sums(), values[0]
        else:
            sums.setdefault((partition, table), Sums()).add(table, keys, values)
    for (partition, table), found in sums.items():
        yield partition, table, found, b""
