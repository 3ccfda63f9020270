"""A `ports.Reader` over the files of a backup, so that a state is read from a backup as from Kafka."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from statehold.common.names import Names
from statehold.errors import UsageError
from statehold.ports import OutOfRange
from statehold.record import Message
from statehold.snapshot.backup import archive
from statehold.snapshot.backup.archive import ArchiveFile, ArchiveLine, BackupManifest, Role
from statehold.snapshot.format.partition_identity import Place

_decode = msgspec.json.Decoder(ArchiveLine).decode


class ArchivedMessage:
    """A record of a file with the interface of Kafka's client."""

    def __init__(self, file: ArchiveFile, line: ArchiveLine) -> None:
        self._file, self._line = file, line

    def topic(self) -> str:
        return self._file.topic

    def partition(self) -> int:
        return self._file.partition

    def offset(self) -> int:
        return self._line.offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._line.timestamp

    def key(self) -> bytes | None:
        return archive.bytes_of(self._line.key)

    def value(self) -> bytes | None:
        return archive.bytes_of(self._line.value)

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [(name, archive.bytes_of(value)) for name, value in self._line.headers] or None


class _Opened:
    def __init__(self, directory: Path, file: ArchiveFile) -> None:
        self.file = file
        self.path = directory / file.name
        self.starts = archive.check(directory, file)
        with self.path.open("rb") as lines:
            self.offsets = [_decode(line).offset for line in lines]


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
                yield [ArchivedMessage(opened.file, _decode(next(lines))) for _ in range(count)]

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


def place_of(directory: Path, manifest: BackupManifest, partition: int) -> Place:
    """Return the partition's place at the time of the backup, with the backup's folder as the store."""
    names = Names(manifest.service, manifest.input, manifest.namespace)
    root = f"file://{directory.absolute() / archive.FULLS}"
    return Place(names, partition, len(manifest.partitions), manifest.topic_ids, roots=(root,))


def check_all(directory: Path, manifest: BackupManifest) -> None:
    """Check every file. :raises UsageError: a file is missing or was changed."""
    for file in manifest.files:
        archive.check(directory, file)


def file_of(directory: Path, manifest: BackupManifest, role: Role, partition: int) -> ArchiveFile:
    """Return a file of the backup. :raises UsageError: the backup has no such file."""
    found = manifest.file(role, partition)
    if found is None:
        raise UsageError(f"{directory} holds no {role} of partition {partition}")
    return found
