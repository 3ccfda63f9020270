"""A `ports.Reader` over the files of a backup, so that a state is read from a backup as from Kafka."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from statehold.api.record import MemoryMessage, Message
from statehold.common.names import Names
from statehold.errors import UsageError
from statehold.ports import OutOfRange
from statehold.snapshot.backup import archive
from statehold.snapshot.backup.archive import ArchiveFile, ArchiveLine, BackupManifest, Role
from statehold.snapshot.format.partition_identity import Place

_decode = msgspec.json.Decoder(ArchiveLine).decode


class _Opened:
    def __init__(self, directory: Path, file: ArchiveFile) -> None:
        self.file = file
        self.path = directory / file.name
        self.starts = archive.check(directory, file)
        self.offsets, self.times = array("q"), array("q")
        with self.path.open("rb") as lines:
            for line in map(_decode, lines):
                self.offsets.append(line.offset)
                self.times.append(line.timestamp)


class ArchiveReader:
    """A `ports.Reader`. It compares a file with its checksum at the first read."""

    def __init__(self, directory: Path, manifest: BackupManifest) -> None:
        self._directory = directory
        logs = (file for file in manifest.files if file.role != "segment")
        self._files = {(file.topic, file.partition): file for file in logs}
        self._open: dict[tuple[str, int], _Opened] = {}

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        file = self._opened(topic, partition).file
        return file.start, file.end

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 2000) -> Iterator[Sequence[Message]]:
        opened = self._opened(topic, partition)
        if start < end and not opened.file.start <= start <= opened.file.end:
            raise OutOfRange(f"{opened.path} holds offsets {opened.file.start} to {opened.file.end}, not {start}")
        low, high = (bisect_left(opened.offsets, offset) for offset in (start, end))
        if low >= high:
            return
        with opened.path.open("rb") as lines:
            lines.seek(opened.starts[low])
            for first in range(low, high, most):
                count = min(most, high - first)
                yield [_message(opened.file, _decode(next(lines))) for _ in range(count)]

    def offset_at(self, topic: str, partition: int, moment: int) -> int:
        """Return the first offset at that time (milliseconds since 1970) or later, else the end."""
        opened = self._opened(topic, partition)
        later = (offset for offset, time in zip(opened.offsets, opened.times, strict=True) if time >= moment)
        return next(later, opened.file.end)

    def cancelled(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing; no file stays open."""

    def _opened(self, topic: str, partition: int) -> _Opened:
        known = self._open.get((topic, partition))
        if known is None:
            file = self._files.get((topic, partition))
            if file is None:
                raise UsageError(f"{self._directory} holds no {topic}[{partition}]")
            known = self._open[topic, partition] = _Opened(self._directory, file)
        return known


def _message(file: ArchiveFile, line: ArchiveLine) -> MemoryMessage:
    key, value = archive.bytes_of(line.key), archive.bytes_of(line.value)
    headers = [(name, archive.bytes_of(data)) for name, data in line.headers] or None
    return MemoryMessage(file.topic, file.partition, line.offset, value, key, headers, line.timestamp)


def place_of(directory: Path, manifest: BackupManifest, partition: int) -> Place:
    """Return the partition's place at the time of the backup, with the backup's folder as the store."""
    names = Names(manifest.service, manifest.input, manifest.namespace, tuple(manifest.others))
    root = f"file://{directory.absolute() / archive.FULL_SNAPSHOTS}"
    return Place(names, partition, len(manifest.partitions), manifest.topic_ids, roots=(root,))


def check_all(directory: Path, manifest: BackupManifest) -> None:
    """Check every file. :raises UsageError: a file is missing or was changed."""
    for file in manifest.files:
        archive.check(directory, file)


def file_of(directory: Path, manifest: BackupManifest, role: Role, topic: str, partition: int) -> ArchiveFile:
    """Return a file of the backup. :raises UsageError: the backup has no such file."""
    found = manifest.file(role, topic, partition)
    if found is None:
        raise UsageError(f"{directory} holds no {role} {topic} of partition {partition}")
    return found
