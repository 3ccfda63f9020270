"""Writes the chunks of a folded state on the executors; the driver writes the manifest (rule C2).

Spark's sink is not used, because it returns no offsets, and a task that runs twice would mix its chunks. Here each run
of a task writes a full snapshot with its own id to the snapshot topic (idempotent producer) or to the store. It reports
id, offsets and checksums after all acknowledgements. Spark keeps the report of one run, so the manifest names chunks of
exactly one run. Chunks of other runs are never referred to, and truncated later.

With `Target.continued` a task writes the changed keys only, under the id of the base and after its chunks. Keys are
sorted, so that a task that runs twice writes the same chunks. It reads all of them back before it reports.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import msgspec
from pyspark import RDD

from statehold.errors import KafkaTrouble
from statehold.ports import FullSink
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Chunk, CommitRecord, Manifest, split
from statehold.snapshot.full import CHUNK_KEYS
from statehold.snapshot.restore.discovery import LocatedManifest
from statehold.snapshot.spark.fold.merge import Rows
from statehold.snapshot.spark.fold.newest import REPORT
from statehold.snapshot.spark.fold.proof import Sums
from statehold.snapshot.spark.fold.report import TaskReport, decode_report, encode_report
from statehold.snapshot.spark.fold.sharing import Continued
from statehold.snapshot.spark.io.family import FamilyReading
from statehold.snapshot.spark.io.scan import ReaderOf, chunks_of
from statehold.state.partition_table import Changes

#: Seconds without any acknowledgement after which the task fails.
_PATIENCE: Final = 60.0

#: Creates the sink of one partition; called on an executor, so it is pickled by reference.
SinkOf = Callable[[int], FullSink]


class Target(msgspec.Struct, frozen=True):
    """The newest known manifest of a partition, which the chunks name (rule S5), the format, the bytes of a chunk."""

    newest: int
    format: int
    chunk_bytes: int
    #: the full snapshot whose chunks the new one shares; None: it is whole
    continued: Continued | None = None


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
    #: Chunks of `checksums` that were there before; `keys`, `size`, `sent` and `sums` are those of the other ones.
    shared: int = 0
    #: Why it must not be published; '' if it may.
    finding: str = ""

    def digest_sums(self) -> dict[str, Sums]:
        """Return the sums by table."""
        return {
            table: Sums(int.from_bytes(text, "little"), int.from_bytes(packed, "little"), keys)
            for table, (text, packed, keys) in self.sums.items()
        }

    def manifest(
        self,
        place: Place,
        commit_record: CommitRecord,
        increment: int,
        maker: str,
        now: float,
        base: LocatedManifest | None = None,
    ) -> Manifest:
        """Return the manifest of the state at `mark`, whose deltas follow from offset `increment` of the changelog.

        `now` is in seconds since 1970, `base` the full snapshot whose chunks it shares.
        """
        whole = self._whole(place, commit_record, increment, maker, now)
        if base is None:
            return whole
        return msgspec.structs.replace(
            whole,
            low=base.manifest.low,
            store=base.manifest.store,
            keys=commit_record.keys,
            size=base.manifest.size + self.size,
            shared=self.shared,
            rows=base.manifest.loads + self.keys,
            family=base.ref.low,
        )

    def _whole(self, place: Place, commit_record: CommitRecord, increment: int, maker: str, now: float) -> Manifest:
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
            types=commit_record.types,
        )


_encode = msgspec.msgpack.Encoder().encode
decode_written = msgspec.msgpack.Decoder(WrittenFull).decode


def write(
    rows: RDD[Rows], targets: Mapping[int, Target], sink_of: SinkOf | None, reader_of: ReaderOf | None = None
) -> RDD[tuple[str, bytes]]:
    """Return pairs: 'full' and a `WrittenFull` for each partition with keys, 'report' and each report.

    No sink: write nothing. One task writes a partition's chunks in order, so that they are in order on the topic.
    `reader_of` is for targets that continue a full snapshot.
    """
    return rows.mapPartitions(ChunkWriter(dict(targets), sink_of, reader_of))


class ChunkWriter:
    """Function for `mapPartitions` over the rows of one partition."""

    def __init__(
        self, targets: Mapping[int, Target], sink_of: SinkOf | None, reader_of: ReaderOf | None = None
    ) -> None:
        self._targets, self._sink_of, self._reader_of = targets, sink_of, reader_of

    def __call__(self, rows: Iterable[Rows]) -> Iterator[tuple[str, bytes]]:
        full: _Full | None = None
        sound = True
        for partition, table, keys, values in rows:
            if full is None and (table != REPORT or self._targets[partition].continued is not None):
                full = self._begin(partition)
            if table == REPORT:
                sound = sound and not decode_report(values[0]).finding
                yield "report", values[0]
            elif full is not None:
                full.add(table, keys, values)
        if full is None:
            return
        if not sound:
            full.close()
            return
        yield "full", _encode(full.finish())
        if full.report is not None:
            yield "report", encode_report(full.report)

    def _begin(self, partition: int) -> _Full:
        target = self._targets[partition]
        if target.continued is None:
            return _Full(partition, target, self._sink_of)
        assert self._reader_of is not None, "a compaction gives one"
        return _Member(partition, target, self._sink_of, target.continued, self._reader_of)


class _Full:
    """Writes the chunks of one partition."""

    #: About what it has read.
    report: TaskReport | None = None

    def __init__(self, partition: int, target: Target, sink_of: SinkOf | None, base: Manifest | None = None) -> None:
        self._partition, self._target = partition, target
        self._sink = sink_of(partition) if sink_of else None
        self._id = base.full if base else uuid.uuid4().hex[:16]
        self._store = self._sink.open(self._id, base.segments if base else 0) if self._sink else ""
        self._checksums: list[int] = list(base.checksums) if base else []
        self._shared = len(self._checksums)
        self._sums: dict[str, Sums] = {}
        self._keys = self._size = self._sent = 0

    def add(self, table: str, keys: list[bytes], values: list[bytes]) -> None:
        """Write these keys, split into chunks as a worker does."""
        self._sums.setdefault(table, Sums()).add(table, keys, values)
        self._write(table, keys, values)

    def _write(self, table: str, keys: list[bytes], values: Sequence[bytes | None]) -> None:
        self._keys += len(keys)
        for low in range(0, len(keys), CHUNK_KEYS):
            some: list[Any] = keys[low : low + CHUNK_KEYS]
            for piece in split(Changes(table, some, [*values[low : low + CHUNK_KEYS]]), self._target.chunk_bytes):
                self._add(records.entry(Changes(table, list(map(msgspec.Raw, piece.keys)), piece.values)))

    def _add(self, entry: msgspec.Raw) -> None:
        chunk = Chunk(self._id, len(self._checksums), self._target.newest, entry)
        payload = records.pack(chunk, self._target.format)
        self._checksums.append(frame.body_checksum(payload))
        self._sent += len(payload)
        self._size += len(memoryview(entry))
        if self._sink is not None:
            self._sink.send(payload)

    def finish(self) -> WrittenFull:
        """Wait for the acknowledgements. :raises KafkaTrouble: a chunk was rejected or not acknowledged; run again."""
        segments = self._sink.seal() if self._sink else 0
        offsets = acknowledged(self._sink, len(self._checksums) - self._shared) if self._sink else []
        return self._written(segments, offsets)

    def close(self) -> None:
        """Abandon it."""
        if self._sink is not None:
            self._sink.close()

    def _written(self, segments: int, offsets: Sequence[int]) -> WrittenFull:
        return WrittenFull(
            partition=self._partition,
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
            shared=self._shared,
        )


class _Member(_Full):
    """Writes the changed keys of one partition after the chunks of the base, and reads all chunks back."""

    def __init__(
        self, partition: int, target: Target, sink_of: SinkOf | None, continued: Continued, reader_of: ReaderOf
    ) -> None:
        super().__init__(partition, target, sink_of, continued.base.manifest)
        self._continued, self._reader_of = continued, reader_of
        self._reading = FamilyReading(continued)

    def add(self, table: str, keys: list[bytes], values: list[bytes]) -> None:
        reading = self._reading
        reading.note(table, keys)
        if reading.finding:
            return
        order = sorted(range(len(keys)), key=keys.__getitem__)
        self._write(table, [keys[i] for i in order], [values[i] for i in order])
        if self._sink is None:
            reading.take_new(table, keys, values)

    def finish(self) -> WrittenFull:
        reading, segments, offsets = self._reading, self._continued.base.manifest.segments, list[int]()
        if reading.finding:
            self.close()
            return msgspec.structs.replace(self._written(segments, offsets), finding=reading.finding)
        if self._sink is not None:
            segments = self._sink.seal()
            offsets = acknowledged(self._sink, len(self._checksums) - self._shared)
        self._read_back(segments, offsets)
        self.report, self._sums = reading.report, reading.sums()
        return msgspec.structs.replace(self._written(segments, offsets), finding=reading.finding)

    def _read_back(self, segments: int, offsets: Sequence[int]) -> None:
        base, expected = self._continued.base, self._checksums
        if self._sink is None:
            expected = expected[: self._shared]
        manifest = msgspec.structs.replace(base.manifest, segments=segments, checksums=tuple(expected))
        end = offsets[-1] + 1 if offsets and not manifest.store else base.offset
        with closing(self._reader_of()) as reader:
            self._reading.read(chunks_of(reader, self._continued.place, manifest, end), expected)


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
