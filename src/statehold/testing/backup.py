"""A backup as the beginning of a driver's partition: its state at a point, and the records of its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from heapq import merge
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from statehold.api.record import Message
from statehold.common.names import Names
from statehold.errors import UsageError
from statehold.snapshot.backup import archive
from statehold.snapshot.backup.archive import BackupManifest, FileWriter, Role, SavedPartition
from statehold.snapshot.backup.reading import ArchiveReader, place_of
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.inspect import past
from statehold.state import digest
from statehold.state.partition_table import Changes
from statehold.testing.memory.broker import MemoryBroker


class Beginning(NamedTuple):
    """The state with which a partition starts, and the next offset of each input."""

    changes: tuple[Changes, ...] = ()
    digest: bytes = digest.to_bytes(0)
    keys: int = 0
    positions: tuple[int, ...] = ()
    #: versions and types of the tables, as in a commit record
    schemas: Mapping[str, int] = MappingProxyType({})
    types: Mapping[str, str] = MappingProxyType({})


def write(
    directory: Path, names: Names, broker: MemoryBroker, commit_records: Mapping[int, CommitRecord], *, with_input: bool
) -> None:
    """Write what `statehold snapshot backup` writes. :raises UsageError: the directory is not empty."""
    archive.prepare(directory)
    topics: list[tuple[Role, str, int]] = [("increment", names.changelog, 1), ("full", names.snapshot, 1)]
    if with_input:
        topics += [("input", topic, number) for number, topic in enumerate(names.inputs, 1)]
    files = []
    for partition in commit_records:
        for role, topic, number in topics:
            log = broker.log(topic, partition)
            writer = FileWriter(directory, role, topic, partition, number)
            writer.add(log.committed())
            files.append(writer.done(log.start, log.end))
    saved = [
        SavedPartition(
            partition,
            record.n,
            record.position(names.input),
            record.keys,
            0,
            digest.show(record.digest),
            record.lineage,
        )
        for partition, record in commit_records.items()
    ]
    newest = next(iter(commit_records.values()))
    made = datetime.fromtimestamp(newest.time / 1000, UTC).isoformat()
    ids = dict(newest.topic_ids)
    manifest = BackupManifest.of(names, directory.name, saved, files, topic_ids=ids, outputs={}, made=made)
    archive.write_manifest(directory, manifest)


class BackupPartition:
    """One partition of a backup; its inputs are in the order of their declaration."""

    def __init__(self, directory: Path, partition: int) -> None:
        """:raises UsageError: this is no complete backup, or it has no such partition."""
        self._directory, self._manifest = directory, archive.read_manifest(directory)
        if not 0 <= partition < len(self._manifest.partitions):
            raise UsageError(f"{directory} has {len(self._manifest.partitions)} partitions, no partition {partition}")
        self._reader = ArchiveReader(directory, self._manifest)
        self._place = place_of(directory, self._manifest, partition)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self._manifest.inputs

    def state(self, at: str) -> Beginning:
        """Return the state at a point; see `past.parse`. :raises UsageError: the backup cannot restore it.

        :raises DigestMismatch, TornTransaction, DamagedIncrement, NoCommitRecord: as a restore.
        """
        found = past.at(self._reader, self._place, past.parse(at))
        tables = found.contents.tables.items()
        changes = tuple(Changes(name, [*rows], [*rows.values()]) for name, rows in tables if rows)
        positions = tuple(found.offsets(self.inputs).values())
        return Beginning(changes, found.digest, found.contents.keys, positions, found.schemas, found.types)

    def records(self, positions: Mapping[int, int], until: int | None) -> Iterator[tuple[int, Message]]:
        """Yield the records from these offsets on, each with the number of its input, by time and number.

        `until`: up to this time, in milliseconds since 1970. :raises UsageError: the backup has no input.
        """
        if not self._manifest.with_input:
            raise UsageError(f"{self._directory} has no input. Next: make a backup with --with-input")
        streams = [self._input(number, topic, positions[number]) for number, topic in enumerate(self.inputs)]
        for time, number, _, message in merge(*streams, key=lambda found: found[:3]):
            if until is None or time <= until:
                yield number, message

    def _input(self, number: int, topic: str, start: int) -> Iterator[tuple[int, int, int, Message]]:
        partition, newest = self._place.partition, 0
        low, end = self._reader.bounds(topic, partition)
        for batch in self._reader.read(topic, partition, max(low, start), end):
            for message in batch:
                newest = max(newest, message.timestamp()[1])  # records of an input keep their order
                yield newest, number, message.offset() or 0, message
