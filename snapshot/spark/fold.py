"""The fold itself, in the JVM: the newest value of each key, and the state cut into chunks (rule C1).

Rows are spread by partition and bucket, a bucket being a part of the keys, so no partition's state is ever in one
task. Which bucket a key is in, the order in a bucket and the cuts depend on the data alone: a task that runs twice
makes the same chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name everybody knows

from holdfast.snapshot import records
from holdfast.snapshot.full import CHUNK_KEYS, split
from holdfast.snapshot.spark.proof import Sums, limbs
from holdfast.snapshot.spark.unpack import REPORT
from holdfast.table import Changes

#: parts of each partition's keys; a bound on how many tasks share one partition
BUCKETS: Final = 16

_LIMBS: Final = tuple(f"{kind}{i}" for kind in ("text", "packed") for i in range(4))
#: one packed chunk, or with table '' a report; the limbs are those of `proof.Sums`
CHUNKS: Final = "partition int, bucket int, seq long, table string, entry binary, keys long, " + ", ".join(
    f"{limb} long" for limb in _LIMBS
)


def fold(rows: DataFrame, tasks: int, buckets: int = BUCKETS) -> DataFrame:
    """The newest value of each key: (partition, bucket, table, key, value), sorted; deleted keys are gone.

    One shuffle: the exchange by (partition, bucket) serves the grouping, too, and the grouping sorts.
    """
    bucket = F.pmod(F.xxhash64("table", "key"), F.lit(buckets)).cast("int")
    return (
        rows.withColumn("bucket", bucket)
        .repartition(tasks, "partition", "bucket")
        .groupBy("partition", "bucket", "table", "key")
        .agg(F.max_by("value", "rank").alias("value"))
        .where(F.col("value").isNotNull())
        .sortWithinPartitions("partition", "bucket", "table", "key")
    )


def chunks(folded: DataFrame, chunk_bytes: int) -> DataFrame:
    """`CHUNKS`: the folded state as entries of at most `chunk_bytes`, each with its part of the digest."""
    return folded.mapInArrow(Packer(chunk_bytes), CHUNKS)


def sums_of(packed: DataFrame) -> DataFrame:
    """(partition, table, report, keys, limbs): the digest's sums, added up in the JVM; each report is a row, too."""
    report = F.when(F.col("table") == REPORT, F.col("entry")).alias("report")
    added = [F.sum(name).alias(name) for name in ("keys", *_LIMBS)]
    return packed.groupBy("partition", "table", report).agg(*added)


def sums_from(row: Any) -> Sums:
    """The sums of a row of `sums_of` or of `CHUNKS`."""
    text, packed = (sum(row[f"{kind}{i}"] << 32 * i for i in range(4)) for kind in ("text", "packed"))
    return Sums(text, packed, row["keys"])


class Packer:
    """For `mapInArrow` over the sorted rows of `fold`; out come `CHUNKS`."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        packing = _Packing(self._chunk_bytes)
        for batch in batches:
            for where, low, high in _runs(batch):
                keys = batch.column("key").slice(low, high - low).to_pylist()
                values = batch.column("value").slice(low, high - low).to_pylist()
                packing.feed(where, keys, values)
            if packing.out:
                yield packing.take()
        packing.finish()
        if packing.out:
            yield packing.take()


Where = tuple[int, int, str]


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[Where, int, int]]:
    """Stretches of a batch that are of one partition, bucket and table; the rows are sorted by them."""
    low, rows = 0, batch.num_rows
    columns = [batch.column(name) for name in ("partition", "bucket", "table")]

    def at(row: int) -> Where:
        partition, bucket, table = (column[row].as_py() for column in columns)
        return partition, bucket, table

    while low < rows:
        where, high = at(low), rows
        if at(rows - 1) != where:
            inside = low
            while high - inside > 1:
                middle = (inside + high) // 2
                inside, high = (middle, high) if at(middle) == where else (inside, middle)
        yield where, low, high
        low = high


class _Packing:
    """Gathers the keys of one run and cuts them as a worker's full is cut."""

    def __init__(self, chunk_bytes: int) -> None:
        self._limit = chunk_bytes
        self._where: Where | None = None
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._seq = 0
        self.out: list[tuple[Any, ...]] = []

    def feed(self, where: Where, keys: list[bytes], values: list[bytes]) -> None:
        if where != self._where:
            self.finish()
            self._seq = self._seq if self._where and self._where[:2] == where[:2] else 0
            self._where = where
        if where[2] == REPORT:
            for report in values:
                self._append(report, 0, Sums())
            return
        self._keys += keys
        self._values += values
        whole = len(self._keys) // CHUNK_KEYS * CHUNK_KEYS
        for low in range(0, whole, CHUNK_KEYS):
            self._cut(self._keys[low : low + CHUNK_KEYS], self._values[low : low + CHUNK_KEYS])
        if whole:
            self._keys, self._values = self._keys[whole:], self._values[whole:]

    def finish(self) -> None:
        if self._keys:
            self._cut(self._keys, self._values)
            self._keys, self._values = [], []

    def _cut(self, keys: list[bytes], values: list[bytes]) -> None:
        assert self._where is not None
        table = self._where[2]
        for piece in split(Changes(table, keys, list(values)), self._limit):
            sums, stored = Sums(), [value for value in piece.values if value is not None]
            sums.add(table, piece.keys, stored)
            raw = records.entry(Changes(table, list(map(msgspec.Raw, piece.keys)), piece.values))
            self._append(bytes(raw), len(piece.keys), sums)

    def _append(self, entry: bytes, keys: int, sums: Sums) -> None:
        assert self._where is not None
        partition, bucket, table = self._where
        self.out.append((partition, bucket, self._seq, table, entry, keys, *limbs(sums.text), *limbs(sums.packed)))
        self._seq += 1

    def take(self) -> pa.RecordBatch:
        columns, self.out = list(zip(*self.out, strict=True)), []
        small = [pa.array(columns[i], kind) for i, kind in ((0, pa.int32()), (1, pa.int32()), (2, pa.int64()))]
        content = [pa.array(columns[3], pa.string()), pa.array(columns[4], pa.binary())]
        counts = [pa.array(column, pa.int64()) for column in columns[5:]]
        names = ["partition", "bucket", "seq", "table", "entry", "keys", *_LIMBS]
        return pa.record_batch([*small, *content, *counts], names=names)
