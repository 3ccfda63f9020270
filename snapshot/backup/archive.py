"""The files of a backup: a file of JSON lines per topic partition, and the manifest, which is written last.

A line is {"offset": 7, "timestamp": 1795238641836, "key": ..., "value": ..., "headers": [[name, value], ...]}; keys and
values are base64 or null. Values of changelog and snapshot topics are frames (docs/reference/format.md).
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec

from statehold.api.record import Message
from statehold.common.names import Names
from statehold.common.version import __version__
from statehold.errors import UsageError
from statehold.snapshot.store.base import is_safe_key
from statehold.snapshot.store.files import FileStore

#: Format of a backup of one input, and of one of several; an older release rejects the latter.
FORMAT: Final = 1
SEVERAL: Final = 2
MANIFEST: Final = "manifest.json"
Role = Literal["increment", "full", "input", "segment"]
#: Folder of the full snapshots that were in a store, in the layout of that store.
FULL_SNAPSHOTS: Final = "fulls"

README: Final = """# A statehold backup

`manifest.json` names the service and describes each file with its `bytes` and `sha256`. It is written last: a directory
without it is an incomplete backup.

Each file holds the records of one topic partition, one JSON object per line, in offset order:

    {"offset": 7, "timestamp": 1795238641836, "key": null, "value": "AQpNAA...", "headers": [["name", "dmFsdWU="]]}

Keys, values and header values are base64, or null. `input-P.jsonl` holds the input records as their producers wrote
them; of several inputs the second one is in `input2-P.jsonl`. `increment-P.jsonl` (changelog) and `full-P.jsonl`
(snapshots) are the state. Each of their values is a frame: a head of 16 bytes and a body of msgpack, which may be
compressed with zstd (docs/reference/format.md of statehold).

If the service stores full snapshots outside Kafka, `full-P.jsonl` holds only their manifests, and `fulls/` holds their
chunks in the layout of that store: frames, each preceded by its length (4 bytes, little endian).

Restore it with `statehold snapshot restore MODULE:SERVICE --from DIRECTORY --why TEXT --yes`.
"""


class ArchiveLine(msgspec.Struct, frozen=True):
    """One record of a file."""

    offset: int
    timestamp: int
    key: str | None = None
    value: str | None = None
    headers: list[tuple[str, str | None]] = []


class ArchiveFile(msgspec.Struct, frozen=True):
    """One file with every committed record of the offsets [start, end)."""

    name: str
    topic: str
    partition: int
    role: Role
    start: int
    end: int
    records: int
    bytes: int
    sha256: str


class SavedPartition(msgspec.Struct, frozen=True):
    """The last commit record of a partition."""

    partition: int
    n: int
    #: With several inputs, here and in `oldest`, the sum of their next offsets.
    position: int
    #: Oldest position whose state can be restored from the backup.
    oldest: int
    keys: int
    digest: str
    lineage: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    backup: str
    service: str
    namespace: str
    input: str
    #: Further inputs, in the order of their declaration.
    others: list[str] = []
    partitions: list[SavedPartition]
    #: Topic -> topic id of inputs, changelog and snapshot topic.
    topic_ids: dict[str, str]
    #: Topic -> number of partitions of the outputs.
    outputs: dict[str, int] = {}
    files: list[ArchiveFile]
    statehold: str
    #: Time of the backup as ISO 8601, by the clock of the process that made it.
    made: str

    @classmethod
    def of(
        cls,
        names: Names,
        backup: str,
        partitions: list[SavedPartition],
        files: list[ArchiveFile],
        *,
        topic_ids: dict[str, str],
        outputs: dict[str, int],
        made: str,
    ) -> BackupManifest:
        """Return the manifest of a backup of this service by this release; `made` as the field."""
        return cls(
            format=SEVERAL if names.others else FORMAT,
            backup=backup,
            service=names.service,
            namespace=names.namespace,
            input=names.input,
            others=list(names.others),
            partitions=partitions,
            topic_ids=topic_ids,
            outputs=outputs,
            files=files,
            statehold=__version__,
            made=made,
        )

    @property
    def with_input(self) -> bool:
        return any(file.role == "input" for file in self.files)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.input, *self.others)

    def file(self, role: Role, topic: str, partition: int) -> ArchiveFile | None:
        found = (each for each in self.files if (each.role, each.topic, each.partition) == (role, topic, partition))
        return next(found, None)


_decode_manifest = msgspec.json.Decoder(BackupManifest).decode


def prepare(directory: Path) -> None:
    """Create the directory and its README. :raises UsageError: the directory is not empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is not empty. Next: choose a new directory for each backup")
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(0o700)
    with private(directory / "README.md") as file:
        file.write(README.encode())


def private(path: Path) -> BinaryIO:
    """Open a new file that only this user may read, because a backup holds the state's data."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def add_segment(directory: Path, topic: str, partition: int, key: str, data: bytes) -> ArchiveFile:
    """Write a segment of a full snapshot durably; `key` is its key in the store."""
    FileStore(str(directory.absolute() / FULL_SNAPSHOTS), private=True).put(key, data)
    checksum = hashlib.sha256(data).hexdigest()
    return ArchiveFile(f"{FULL_SNAPSHOTS}/{key}", topic, partition, "segment", 0, 0, 0, len(data), checksum)


class FileWriter:
    """Writes one file and computes its checksum and number of records."""

    def __init__(self, directory: Path, role: Role, topic: str, partition: int, number: int = 1) -> None:
        """`number`: that of the input, from 1. File names have it in place of the topic, which may be too long."""
        self._path = directory / f"{role}{number if number > 1 else ''}-{partition}.jsonl"
        self._role, self._topic, self._partition = role, topic, partition
        self._hash, self._records, self._bytes = hashlib.sha256(), 0, 0
        self._file = private(self._path)

    def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            line = msgspec.json.encode(_line(message)) + b"\n"
            self._file.write(line)
            self._hash.update(line)
            self._records += 1
            self._bytes += len(line)

    def done(self, start: int, end: int) -> ArchiveFile:
        """Flush the file to disk and return its description."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return ArchiveFile(
            self._path.name,
            self._topic,
            self._partition,
            self._role,
            start,
            end,
            self._records,
            self._bytes,
            self._hash.hexdigest(),
        )


def write_manifest(directory: Path, manifest: BackupManifest) -> None:
    """Write the manifest atomically."""
    unfinished = directory / f".{MANIFEST}"
    with private(unfinished) as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(directory / MANIFEST)


def read_manifest(directory: Path) -> BackupManifest:
    """Read the manifest. :raises UsageError: it is missing, unreadable or of another format."""
    try:
        manifest = _decode_manifest((directory / MANIFEST).read_bytes())
    except OSError as error:
        raise UsageError(f"{directory} is not a complete backup: it has no {MANIFEST}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{directory / MANIFEST}: read the manifest: {error}") from error
    unsafe = [file.name for file in manifest.files if not is_safe_key(file.name)]
    if unsafe:
        raise UsageError(f"{directory / MANIFEST} names {unsafe[0]!r}, which is outside the backup: it was changed")
    if manifest.format not in (FORMAT, SEVERAL):
        raise UsageError(
            f"{directory}: the backup has format {manifest.format}; this release reads {FORMAT} and {SEVERAL}"
        )
    return manifest


def check(directory: Path, file: ArchiveFile) -> list[int]:
    """Compare a file with the manifest. Return the byte position of each line.

    :raises UsageError: the file is missing or was changed.
    """
    path, digest, starts, at = directory / file.name, hashlib.sha256(), [], 0
    try:
        with path.open("rb") as lines:
            for line in lines:
                starts.append(at)
                at += len(line)
                digest.update(line)
    except OSError as error:
        raise UsageError(f"{path}: read a file of the manifest: {error.strerror}") from error
    if digest.hexdigest() != file.sha256 or at != file.bytes:
        raise UsageError(f"{path} differs from the manifest: {at} bytes, {file.bytes} expected, or another checksum")
    return starts


def _line(message: Message) -> ArchiveLine:
    headers = [(name, _text(value)) for name, value in message.headers() or ()]
    return ArchiveLine(
        message.offset() or 0, message.timestamp()[1], _text(message.key()), _text(message.value()), headers
    )


def _text(data: Any) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
