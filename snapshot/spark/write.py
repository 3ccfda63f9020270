"""Writes the chunks of a folded state to the full topic, on the executors; the manifest is the driver's (rule C2).

Not with Spark's sink: that gives back no offsets, and a task that runs twice would mix its chunks under one name. Here
each run of a task writes a full of its own, with an id of its own, through the idempotent producer that workers use,
and reports id, offsets and checksums when all of it is acknowledged. Spark keeps the report of one run only, so the
manifest names the chunks of exactly one run; what others left is never referred to, and truncated one day.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.errors import KafkaTrouble
from holdfast.ports import FullSink
from holdfast.snapshot import frame, records
from holdfast.snapshot.records import Chunk
from holdfast.snapshot.spark.fold import sums_from
from holdfast.snapshot.spark.proof import Sums
from holdfast.snapshot.spark.unpack import REPORT

WRITTEN: Final = "partition int, kind string, payload binary"
#: seconds without any acknowledgement after which the task fails
_PATIENCE: Final = 60.0

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
    #: offsets of the first and the last chunk; -1 where there was none, or nothing was to be written
    low: int
    high: int
    checksums: list[int]
    keys: int
    size: int
    #: bytes on the topic
    sent: int
    sums: dict[str, tuple[bytes, bytes, int]]

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
    return (
        chunks.repartition(max(1, len(targets)), "partition")
        .sortWithinPartitions("partition", "bucket", "seq")
        .mapInArrow(Writer(dict(targets), sink_of), WRITTEN)
    )


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
