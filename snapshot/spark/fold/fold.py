"""Folds deltas in the JVM: the newest value of each key, split into chunks (rule C1).

Rows are distributed by partition and bucket, a range of keys, so that no task holds a whole partition. Bucket, order
and chunk boundaries depend on the data alone. A task that runs twice therefore writes the same chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the conventional name

from statehold.snapshot.format import records
from statehold.snapshot.format.records import split
from statehold.snapshot.full import CHUNK_KEYS
from statehold.snapshot.spark.fold.newest import REPORT
from statehold.snapshot.spark.fold.proof import Sums, limbs
from statehold.table import Changes

#: Ranges of each partition's keys; a limit on the tasks that share one partition.
BUCKETS: Final = 16

_LIMBS: Final = tuple(f"{kind}{i}" for kind in ("text", "packed") for i in range(4))
#: One packed chunk, or a report if the table is ''; the limbs are those of `proof.Sums`.
CHUNKS: Final = "partition int, bucket int, seq long, table string, entry binary, keys long, " + ", ".join(
    f"{limb} long" for limb in _LIMBS
)


def fold(rows: DataFrame, tasks: int) -> DataFrame:
    """Return the newest value of each key without deleted ones: (partition, bucket, table, key, value).

    The rows are sorted by partition and bucket. One shuffle suffices, because the grouping uses the exchange by
    (partition, bucket) and sorts. It sorts by the task slot first, a number almost unique to the key. Names and keys,
    whose comparison costs ten times as much, are compared only if two task slots are equal. The bucket is the highest
    bits of the task slot, so its rows stay together.
    """
    high = F.shiftrightunsigned(F.xxhash64("table", "key"), 32)
    order = ("slot", "partition", "bucket", "table", "key")
    return (
        rows.withColumn("slot", F.col("partition").cast("long") * (1 << 32) + high)
        .withColumn("bucket", F.shiftright(high * BUCKETS, 32).cast("int"))
        .repartition(tasks, "partition", "bucket")
        .groupBy(*order)
        .agg(F.max_by("value", "rank").alias("value"))
        .where(F.col("value").isNotNull())
        .sortWithinPartitions(*order)
        .select("partition", "bucket", "table", "key", "value")
    )


def chunks(folded: DataFrame, chunk_bytes: int) -> DataFrame:
    """Return `CHUNKS`: the folded state in entries of up to `chunk_bytes`, each with its part of the digest."""
    return folded.mapInArrow(Packer(chunk_bytes), CHUNKS)


def sums_of(packed: DataFrame) -> DataFrame:
    """Return (partition, table, report, keys, limbs): the digest's sums, added in the JVM, and a row per report."""
    report = F.when(F.col("table") == REPORT, F.col("entry")).alias("report")
    added = [F.sum(name).alias(name) for name in ("keys", *_LIMBS)]
    return packed.groupBy("partition", "table", report).agg(*added)


def sums_from(row: Any) -> Sums:
    """Return the sums of a row of `sums_of` or `CHUNKS`."""
    text, packed = (sum(row[f"{kind}{i}"] << 32 * i for i in range(4)) for kind in ("text", "packed"))
    return Sums(text, packed, row["keys"])


class Packer:
    """Function for `mapInArrow` from the rows of `fold`, grouped by bucket, to `CHUNKS`; `seq` counts per table."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packing = _Packing(self._chunk_bytes)
        for batch in batches:
            for where, rows in _runs(batch):
                for table, keys, values in _by_table(rows):
                    packing.feed(where, table, keys, values)
            if packing.out:
                yield packing.take()
        packing.finish()
        if packing.out:
            yield packing.take()


Where = tuple[int, int]


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[Where, pa.RecordBatch]]:
    """Yield the slices of a batch that belong to one partition and bucket; the rows are sorted by them."""
    low, rows = 0, batch.num_rows
    partitions, buckets = batch.column("partition"), batch.column("bucket")

    def at(row: int) -> Where:
        return partitions[row].as_py(), buckets[row].as_py()

    while low < rows:
        where, high = at(low), rows
        if at(rows - 1) != where:
            inside = low
            while high - inside > 1:
                middle = (inside + high) // 2
                inside, high = (middle, high) if at(middle) == where else (inside, middle)
        yield where, batch.slice(low, high - low)
        low = high


def _by_table(rows: pa.RecordBatch) -> Iterator[tuple[str, list[bytes], list[bytes]]]:
    """Yield keys and values of each table, in row order."""
    tables = pc.unique(rows.column("table")).to_pylist()
    for table in tables:
        mine = rows if len(tables) == 1 else rows.filter(pc.equal(rows.column("table"), table))
        yield table, mine.column("key").to_pylist(), mine.column("value").to_pylist()


class _Gathered:
    """Keys and values of one table and bucket that are not in a chunk yet."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.seq = 0


class _Packing:
    """Collects the keys of one bucket by table, and splits them into chunks as a worker does."""

    def __init__(self, chunk_bytes: int) -> None:
        self._limit = chunk_bytes
        self._where: Where = (-1, -1)
        self._tables: dict[str, _Gathered] = {}
        self.out: list[tuple[Any, ...]] = []

    def feed(self, where: Where, table: str, keys: list[bytes], values: list[bytes]) -> None:
        if where != self._where:
            self.finish()
            self._where = where
        mine = self._tables.setdefault(table, _Gathered())
        if table == REPORT:
            for report in values:
                self._append(table, mine, report, 0, Sums())
            return
        mine.keys += keys
        mine.values += values
        whole = len(mine.keys) // CHUNK_KEYS * CHUNK_KEYS
        for low in range(0, whole, CHUNK_KEYS):
            self._cut(table, mine, mine.keys[low : low + CHUNK_KEYS], mine.values[low : low + CHUNK_KEYS])
        if whole:
            mine.keys, mine.values = mine.keys[whole:], mine.values[whole:]

    def finish(self) -> None:
        for table, mine in self._tables.items():
            if mine.keys:
                self._cut(table, mine, mine.keys, mine.values)
        self._tables = {}

    def _cut(self, table: str, mine: _Gathered, keys: list[bytes], values: list[bytes]) -> None:
        for piece in split(Changes(table, keys, list(values)), self._limit):
            sums, stored = Sums(), [value for value in piece.values if value is not None]
            sums.add(table, piece.keys, stored)
            raw = records.entry(Changes(table, list(map(msgspec.Raw, piece.keys)), piece.values))
            self._append(table, mine, bytes(raw), len(piece.keys), sums)

    def _append(self, table: str, mine: _Gathered, entry: bytes, keys: int, sums: Sums) -> None:
        self.out.append((*self._where, mine.seq, table, entry, keys, *limbs(sums.text), *limbs(sums.packed)))
        mine.seq += 1

    def take(self) -> pa.RecordBatch:
        columns, self.out = list(zip(*self.out, strict=True)), []
        small = [pa.array(columns[i], kind) for i, kind in ((0, pa.int32()), (1, pa.int32()), (2, pa.int64()))]
        content = [pa.array(columns[3], pa.string()), pa.array(columns[4], pa.binary())]
        counts = [pa.array(column, pa.int64()) for column in columns[5:]]
        names = ["partition", "bucket", "seq", "table", "entry", "keys", *_LIMBS]
        return pa.record_batch([*small, *content, *counts], names=names)
