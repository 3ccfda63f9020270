"""Writes the chunks of a folded state on the executors; the driver writes the manifest (rule C2).

Spark's sink is not used, because it returns no offsets, and a task that runs twice would mix its chunks. Here each run
of a task writes a full snapshot with its own id to the snapshot topic (idempotent producer) or to the store. It reports
id, offsets and checksums after all acknowledgements. Spark keeps the report of one run, so the manifest names chunks of
exactly one run. Chunks of other runs are never referred to, and truncated later.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from statehold.errors import KafkaTrouble
from statehold.ports import FullSink
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Chunk, CommitRecord, Manifest
from statehold.snapshot.spark.fold.fold import sums_from
from statehold.snapshot.spark.fold.newest import REPORT
from statehold.snapshot.spark.fold.proof import Sums

WRITTEN: Final = "partition int, kind string, payload binary"
#: Seconds without any acknowledgement after which the task fails.
_PATIENCE: Final = 60.0
_32: Final = 0xFFFFFFFF

#: Creates the sink of one partition; called on an executor, so it is pickled by reference.
SinkOf = Callable[[int], FullSink]


class Target(msgspec.Struct, frozen=True):
    """The newest known manifest of a partition, which the chunks name (rule S5), and the format to write."""

    newest: int
    format: int


class WrittenFull(msgspec.Struct):
    """The chunks that a task has written for one partition, with the data for manifest and verification."""

    partition: int
    full: str
    #: Offsets of the first and the last chunk; -1 without chunks, in a dry run, or in a store.
    low: int
    high: int
    checksums: list[int]
    keys: int
    size: int
    #: Bytes on the topic.
    sent: int
    sums: dict[str, tuple[bytes, bytes, int]]
    #: As in the manifest.
    store: str = ""
    segments: int = 0

    def digest_sums(self) -> dict[str, Sums]:
        """Return the sums by table."""
        return {
            table: Sums(int.from_bytes(text, "little"), int.from_bytes(packed, "little"), keys)
            for table, (text, packed, keys) in self.sums.items()
        }

    def manifest(self, place: Place, commit_record: CommitRecord, increment: int, maker: str, now: float) -> Manifest:
        """Return the manifest of the state at `mark`, whose deltas follow from offset `increment` of the changelog.

        `now` is in seconds since 1970.
        """
        return Manifest(
            full=self.full,
            service=commit_record.service,
            partition=place.partition,
            partitions=place.partitions,
            lineage=commit_record.lineage,
            first=commit_record.n,
            through=commit_record.n,
            positions=commit_record.positions,
            inputs=commit_record.inputs,
            topic_ids=place.topic_ids,
            digest=commit_record.digest,
            increment=increment,
            low=self.low,
            store=self.store if self.checksums else "",
            segments=self.segments,
            checksums=tuple(self.checksums),
            keys=self.keys,
            size=self.size,
            maker=maker,
            writer=place.writer,
            time=int(now * 1000),
            format=commit_record.format,
            schemas=commit_record.schemas,
        )


_encode = msgspec.msgpack.Encoder().encode
decode_written = msgspec.msgpack.Decoder(WrittenFull).decode


def write(chunks: DataFrame, targets: Mapping[int, Target], sink_of: SinkOf | None) -> DataFrame:
    """Return `WRITTEN` rows: one of kind 'full' per partition with chunks, and the reports. No sink: write nothing.

    One task writes a partition's chunks in order, so that they are in order on the topic.
    """
    tasks = max(1, len(targets))
    return (
        chunks.repartition(tasks, _slots(sorted(targets), tasks)[F.col("partition")])
        .sortWithinPartitions("partition", "bucket", "table", "seq")
        .mapInArrow(ChunkWriter(dict(targets), sink_of), WRITTEN)
    )


def _slots(partitions: Sequence[int], tasks: int) -> Column:
    """Map each partition to a task slot, a number whose hash selects a separate task.

    The hashes of the partitions themselves would select the same task for some of them.
    """
    free, slot = set(range(tasks)), 0
    found: list[int] = []
    while free:
        if (task := spread(slot) % tasks) in free:
            free.remove(task)
            found.append(slot)
        slot += 1
    pairs = zip(partitions, found, strict=False)  # without partitions there is one task without work
    return F.create_map(*(F.lit(number) for pair in pairs for number in pair))


def spread(number: int) -> int:
    """Return Spark's hash of an int: Murmur3 with seed 42."""
    k = number * 0xCC9E2D51 & _32
    k = _rotated(k, 15) * 0x1B873593 & _32
    h = _rotated(42 ^ k, 13) * 5 + 0xE6546B64 & _32
    h ^= 4
    h = (h ^ h >> 16) * 0x85EBCA6B & _32
    h = (h ^ h >> 13) * 0xC2B2AE35 & _32
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & _32


class ChunkWriter:
    """Function for `mapInArrow` over sorted `fold.CHUNKS`."""

    def __init__(self, targets: Mapping[int, Target], sink_of: SinkOf | None) -> None:
        self._targets, self._sink_of = targets, sink_of

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        current: _Full | None = None
        for batch in batches:
            out: list[tuple[int, str, bytes]] = []
            for row in batch.to_pylist():
                if row["table"] == REPORT:
                    out.append((row["partition"], "report", row["entry"]))
                    continue
                if current is None or current.partition != row["partition"]:
                    out += _finished(current)
                    current = _Full(row["partition"], self._targets[row["partition"]], self._sink_of)
                current.add(row)
            if out:
                yield _batch(out)
        if current is not None:
            yield _batch(_finished(current))


def _finished(full: _Full | None) -> list[tuple[int, str, bytes]]:
    return [(full.partition, "full", _encode(full.finish()))] if full is not None else []


def _batch(rows: list[tuple[int, str, bytes]]) -> pa.RecordBatch:
    partitions, kinds, payloads = zip(*rows, strict=True)
    columns = [pa.array(partitions, pa.int32()), pa.array(kinds, pa.string()), pa.array(payloads, pa.binary())]
    return pa.record_batch(columns, names=["partition", "kind", "payload"])


class _Full:
    """Writes the chunks of one partition."""

    def __init__(self, partition: int, target: Target, sink_of: SinkOf | None) -> None:
        self.partition, self._target = partition, target
        self._sink = sink_of(partition) if sink_of else None
        self._id = uuid.uuid4().hex[:16]
        self._store = self._sink.open(self._id) if self._sink else ""
        self._checksums: list[int] = []
        self._sums: dict[str, Sums] = {}
        self._keys = self._size = self._sent = 0

    def add(self, row: dict[str, Any]) -> None:
        chunk = Chunk(self._id, len(self._checksums), self._target.newest, msgspec.Raw(row["entry"]))
        payload = records.pack(chunk, self._target.format)
        self._checksums.append(frame.body_checksum(payload))
        self._sent += len(payload)
        total, part = self._sums.setdefault(row["table"], Sums()), sums_from(row)
        total.join(part)
        self._keys, self._size = self._keys + row["keys"], self._size + len(row["entry"])
        if self._sink is not None:
            self._sink.send(payload)

    def finish(self) -> WrittenFull:
        """Wait for the acknowledgements. :raises KafkaTrouble: a chunk was rejected or not acknowledged; run again."""
        segments = self._sink.seal() if self._sink else 0
        offsets = acknowledged(self._sink, len(self._checksums)) if self._sink else []
        return WrittenFull(
            partition=self.partition,
            full=self._id,
            low=offsets[0] if offsets else -1,
            high=offsets[-1] if offsets else -1,
            checksums=self._checksums,
            keys=self._keys,
            size=self._size,
            sent=self._sent,
            sums={table: (_wide(sums.text), _wide(sums.packed), sums.keys) for table, sums in self._sums.items()},
            store=self._store,
            segments=segments,
        )


def acknowledged(sink: FullSink, count: int) -> list[int]:
    """Return the offsets of all `count` records, and close the sink.

    :raises KafkaTrouble: a record was rejected, or none was acknowledged for a minute.
    """
    try:
        offsets, known = sink.acknowledged(_PATIENCE), 0
        while len(offsets) < count:
            if len(offsets) == known:
                raise KafkaTrouble(f"{len(offsets)} of {count} records were acknowledged within {_PATIENCE:.0f} s")
            known = len(offsets)
            offsets = sink.acknowledged(_PATIENCE)
        return list(offsets)
    finally:
        sink.close()


def empty(partition: int) -> WrittenFull:
    """Return the result for a state without keys: a full snapshot without chunks."""
    return WrittenFull(partition, uuid.uuid4().hex[:16], -1, -1, [], 0, 0, 0, {})


def _wide(number: int) -> bytes:
    """Encode a sum of 128-bit hashes before its reduction."""
    return number.to_bytes(24, "little")
