"""Writes the chunks of a folded state, on the executors; the manifest is the driver's (rule C2).

Not with Spark's sink: that gives back no offsets, and a task that runs twice would mix its chunks under one name. Here
each run of a task writes a full of its own, with an id of its own, to where workers write theirs: the full topic,
through an idempotent producer, or the store. It reports id, offsets and checksums when all of it is acknowledged. Spark
keeps the report of one run only, so the manifest names the chunks of exactly one run; what others left is never
referred to, and truncated one day.
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
from statehold.snapshot.format.records import Chunk
from statehold.snapshot.spark.fold.fold import sums_from
from statehold.snapshot.spark.fold.newest import REPORT
from statehold.snapshot.spark.fold.proof import Sums

WRITTEN: Final = "partition int, kind string, payload binary"
#: seconds without any acknowledgement after which the task fails
_PATIENCE: Final = 60.0
_32: Final = 0xFFFFFFFF

#: makes the producer of one partition's full topic; called on an executor, so it is pickled by reference
SinkOf = Callable[[int], FullSink]


class Target(msgspec.Struct, frozen=True):
    """Of one partition: the newest manifest known, for the chunks to name (rule S5), and the format to write."""

    newest: int
    format: int


class Written(msgspec.Struct):
    """What a task has written of one partition: enough for its manifest and for the proof."""

    partition: int
    full: str
    #: offsets of the first and the last chunk; -1 where there was none, nothing was to be written, or not to Kafka
    low: int
    high: int
    checksums: list[int]
    keys: int
    size: int
    #: bytes on the topic
    sent: int
    sums: dict[str, tuple[bytes, bytes, int]]
    #: as in the manifest
    store: str = ""
    segments: int = 0

    def digest_sums(self) -> dict[str, Sums]:
        """By table."""
        return {
            table: Sums(int.from_bytes(text, "little"), int.from_bytes(packed, "little"), keys)
            for table, (text, packed, keys) in self.sums.items()
        }


_encode = msgspec.msgpack.Encoder().encode
decode_written = msgspec.msgpack.Decoder(Written).decode


def write(chunks: DataFrame, targets: Mapping[int, Target], sink_of: SinkOf | None) -> DataFrame:
    """`WRITTEN` rows: one of kind 'full' per partition with chunks, and the reports. Without a sink nothing is sent.

    A partition's chunks pass through one task, in order and one at a time, so that they lie in order on the topic.
    """
    tasks = max(1, len(targets))
    return (
        chunks.repartition(tasks, _slots(sorted(targets), tasks)[F.col("partition")])
        .sortWithinPartitions("partition", "bucket", "table", "seq")
        .mapInArrow(Writer(dict(targets), sink_of), WRITTEN)
    )


def _slots(partitions: Sequence[int], tasks: int) -> Column:
    """A map from each partition to a number whose hash leads to a task of its own: the hashes of the partitions would
    lead several of a few to one task."""
    free, slot = set(range(tasks)), 0
    found: list[int] = []
    while free:
        if (task := spread(slot) % tasks) in free:
            free.remove(task)
            found.append(slot)
        slot += 1
    pairs = zip(partitions, found, strict=False)  # without partitions there is one task, and nothing for it
    return F.create_map(*(F.lit(number) for pair in pairs for number in pair))


def spread(number: int) -> int:
    """Spark's hash of an int, which is that of Murmur3 with seed 42."""
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


class Writer:
    """For `mapInArrow` over `fold.CHUNKS`, sorted."""

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
    """The chunks of one partition, as they go out."""

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

    def finish(self) -> Written:
        """:raises KafkaTrouble: a chunk was refused, or not acknowledged in time; the task may be run again."""
        segments = self._sink.seal() if self._sink else 0
        offsets = acknowledged(self._sink, len(self._checksums)) if self._sink else []
        return Written(
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
    """The offsets of all `count` records that were sent; closes the sink.

    :raises KafkaTrouble: one was refused, or for a minute none was acknowledged.
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


def empty(partition: int) -> Written:
    """A state without keys has a full without chunks."""
    return Written(partition, uuid.uuid4().hex[:16], -1, -1, [], 0, 0, 0, {})


def _wide(number: int) -> bytes:
    """A sum of 128 bit hashes that is not reduced yet."""
    return number.to_bytes(24, "little")
