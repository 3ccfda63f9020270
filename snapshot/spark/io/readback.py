"""Reads full snapshots back in one job, before older ones are deleted (rules C2, C4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from statehold.config.settings import Settings
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Chunk
from statehold.snapshot.restore.discovery import LocatedManifest
from statehold.snapshot.spark.fold.proof import Sums, proves
from statehold.snapshot.spark.io.source import DamagedBatch, Ranges, collect, with_stored

_READ: Final = "partition int, full string, payload binary"

_entry = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw], list[bytes]]).decode


class Back(msgspec.Struct):
    """The stored chunks of one full snapshot."""

    checksums: list[int]
    sums: dict[str, tuple[bytes, bytes, int]]
    finding: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Back).decode


def read_back(
    spark: SparkSession, settings: Settings, fulls: Iterable[tuple[Place, LocatedManifest]]
) -> dict[tuple[int, int], str]:
    """Return (partition, offset of the manifest) -> the fault of that full snapshot, '' if it is good.

    Compares order, checksums and, if the manifest has one, the digest of the chunks with the manifest.
    """
    wanted, damaged = list(fulls), dict[tuple[int, int], str]()
    while True:
        left = [(place, found) for place, found in wanted if (place.partition, found.offset) not in damaged]
        try:
            return damaged | _read_back(spark, settings, left)
        except DamagedBatch as error:
            there = [found for place, found in left if _holds(place, found, error)]
            if not there:
                raise
            damaged |= {(error.partition, found.offset): str(error) for found in there}


def _holds(place: Place, found: LocatedManifest, error: DamagedBatch) -> bool:
    """Return whether the damaged batch lies between the first chunk of a full snapshot and its manifest."""
    there = (place.names.snapshot, place.partition) == (error.topic, error.partition)
    return there and found.ref.low <= error.offset <= found.offset


def _read_back(
    spark: SparkSession, settings: Settings, wanted: Sequence[tuple[Place, LocatedManifest]]
) -> dict[tuple[int, int], str]:
    backs: dict[tuple[int, str], Back] = {}
    if any(found.manifest.checksums for _, found in wanted):
        ids = {(place.partition, found.manifest.full) for place, found in wanted}
        manifests = [(place, found.manifest) for place, found in wanted]
        frames = with_stored(spark, settings, _layers(wanted), manifests).mapInArrow(ChunkReader(ids), _READ)
        backs = {(row["partition"], row["full"]): _decode(row["payload"]) for row in collect(frames)}
    return {
        (place.partition, found.offset): _judge(found, backs.get((place.partition, found.manifest.full)))
        for place, found in wanted
    }


def _layers(wanted: Iterable[tuple[Place, LocatedManifest]]) -> list[Ranges]:
    """Return the offsets to read; a layer names a topic partition once.

    Full snapshots that overlap share a range, because a task must see all chunks of each. What lies between the ranges
    is not read, because it may be damaged.
    """
    ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for place, found in sorted(wanted, key=lambda each: each[1].manifest.low):
        if found.manifest.checksums and not found.manifest.store:
            known = ranges.setdefault((place.names.snapshot, place.partition), [])
            low, end = found.manifest.low, found.offset
            if known and low < known[-1][1]:
                first, last = known.pop()
                low, end = first, max(last, end)
            known.append((low, end))
    deepest = max(map(len, ranges.values()), default=0)
    return [{key: each[i] for key, each in ranges.items() if i < len(each)} for i in range(deepest)]


def _judge(found: LocatedManifest, back: Back | None) -> str:
    manifest, wanted = found.manifest, len(found.manifest.checksums)
    back = back or Back([], {})
    if back.finding:
        return back.finding
    if back.checksums != list(manifest.checksums):
        return f"{len(back.checksums)} of {wanted} chunks exist, or a checksum differs"
    if not manifest.digest or manifest.first != manifest.through:
        return ""
    return proves(_sums(back.sums), manifest.digest, manifest.keys)


def _sums(sums: Mapping[str, tuple[bytes, bytes, int]]) -> dict[str, Sums]:
    return {
        table: Sums(int.from_bytes(text, "little"), int.from_bytes(packed, "little"), keys)
        for table, (text, packed, keys) in sums.items()
    }


class ChunkReader:
    """Function for `mapInArrow` from Kafka records to one row for each full snapshot of `ids`."""

    def __init__(self, ids: set[tuple[int, str]]) -> None:
        self._ids = ids

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reading: dict[tuple[int, str], _Reading] = {}
        for batch in batches:
            values = batch.column("value").to_pylist()
            for partition, value in zip(batch.column("partition").to_pylist(), values, strict=True):
                self._feed(partition, value, reading)
        if reading:
            yield _batch(reading)

    def _feed(self, partition: int, data: bytes, reading: dict[tuple[int, str], _Reading]) -> None:
        try:
            if frame.kind_of(data) != b"C":
                return
            chunk = records.unpack(data)
        except frame.BadFrame:
            return  # the full snapshot of this chunk reports it as missing
        if isinstance(chunk, Chunk) and (key := (partition, chunk.full)) in self._ids:
            reading.setdefault(key, _Reading()).feed(chunk, frame.body_checksum(data))


class _Reading:
    """The chunks of one full snapshot in order, without duplicates, as in a restore."""

    def __init__(self) -> None:
        self.back = Back([], {})
        self._sums: dict[str, Sums] = {}

    def feed(self, chunk: Chunk, checksum: int) -> None:
        seen = len(self.back.checksums)
        if chunk.i < seen or self.back.finding:
            return
        if chunk.i > seen:
            self.back.finding = f"chunk {seen} is missing or damaged"
            return
        self.back.checksums.append(checksum)
        table, keys, values = _entry(chunk.entry)
        self._sums.setdefault(table, Sums()).add(table, list(map(bytes, keys)), values)

    def row(self) -> bytes:
        self.back.sums = {
            table: (each.text.to_bytes(24, "little"), each.packed.to_bytes(24, "little"), each.keys)
            for table, each in self._sums.items()
        }
        return _encode(self.back)


def _batch(reading: Mapping[tuple[int, str], _Reading]) -> pa.RecordBatch:
    keys: Sequence[tuple[int, str]] = list(reading)
    columns = [
        pa.array([partition for partition, _ in keys], pa.int32()),
        pa.array([full for _, full in keys], pa.string()),
        pa.array([each.row() for each in reading.values()], pa.binary()),
    ]
    return pa.record_batch(columns, names=["partition", "full", "payload"])
