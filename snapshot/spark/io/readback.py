"""Reads full snapshots back in one job, before older ones are deleted (rules C2, C4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial

from pyspark.sql import SparkSession

from statehold.errors import DamagedIncrement
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Chunk, Manifest
from statehold.snapshot.restore.discovery import LocatedManifest
from statehold.snapshot.spark.fold.newest import present
from statehold.snapshot.spark.fold.proof import Sums, proves
from statehold.snapshot.spark.io.scan import ReaderOf, chunks_of
from statehold.snapshot.spark.io.source import collect

_Asked = tuple[Place, LocatedManifest]


def read_back(spark: SparkSession, reader_of: ReaderOf, full_snapshots: Iterable[_Asked]) -> dict[tuple[int, int], str]:
    """Return (partition, offset of the manifest) -> the fault of that full snapshot, '' if it is good.

    Compares order, checksums and, if the manifest has one, the digest of the chunks with the manifest.

    :raises JobFailed: a read failed.
    """
    asked: dict[int, list[_Asked]] = {}
    for place, found in full_snapshots:
        asked.setdefault(place.partition, []).append((place, found))
    tasks = spark.sparkContext.parallelize(list(asked.values()), max(1, len(asked)))
    return dict(collect(tasks.mapPartitions(partial(_read_back, reader_of))))


def _read_back(reader_of: ReaderOf, tasks: Iterable[Sequence[_Asked]]) -> Iterator[tuple[tuple[int, int], str]]:
    """Read the full snapshots of one partition after the other, each in order; on an executor."""
    with closing(reader_of()) as reader:
        for asked in tasks:
            for place, found in asked:
                yield (place.partition, found.offset), fault_of(reader, place, found)


def fault_of(reader: Reader, place: Place, found: LocatedManifest) -> str:
    """Return why the stored chunks are not those of the manifest; '' if they are."""
    manifest = found.manifest
    reading = _Reading(manifest, summed=not manifest.shared)
    if not manifest.checksums:
        return ""
    try:
        for data in chunks_of(reader, place, manifest, found.offset):
            reading.feed(data)
    except (DamagedIncrement, OutOfRange) as error:
        return str(error)
    if reading.finding:
        return reading.finding
    if reading.checksums != list(manifest.checksums):
        return f"{len(reading.checksums)} of {len(manifest.checksums)} chunks exist, or a checksum differs"
    if not manifest.digest or manifest.first != manifest.through or manifest.shared:
        return ""  # of one that shares chunks the rows are not the state, and its writer has computed the digest
    return proves(reading.sums, manifest.digest, manifest.keys)


class _Reading:
    """The chunks of one full snapshot in order, without duplicates, as in a restore."""

    def __init__(self, manifest: Manifest, *, summed: bool) -> None:
        self._full, self._wanted, self._summed = manifest.full, len(manifest.checksums), summed
        self.finding = ""
        self.checksums: list[int] = []
        self.sums: dict[str, Sums] = {}

    def feed(self, data: bytes) -> None:
        seen = len(self.checksums)
        try:
            if frame.kind_of(data) != b"C" or self.finding:
                return
            chunk = records.unpack(data)
        except frame.BadFrame:
            return  # because the next chunk reports this one as missing
        if not isinstance(chunk, Chunk) or chunk.full != self._full or not seen <= chunk.i < self._wanted:
            return
        if chunk.i > seen:
            self.finding = f"chunk {seen} is missing or damaged"
            return
        self.checksums.append(frame.body_checksum(data))
        if not self._summed:
            return
        try:
            table, keys, values = present(chunk.entry)
        except frame.BadFrame as error:
            self.finding = f"chunk {seen}: {error}"
            return
        self.sums.setdefault(table, Sums()).add(table, keys, values)
