"""The files of a backup: one of JSON lines for each topic partition, and the manifest, which is written last.

A line is {"offset": 7, "timestamp": 1795238641836, "key": ..., "value": ..., "headers": [[name, value], ...]}; keys and
values are base64 or null. Of our own topics the value is a frame as docs/format.md describes it.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec

from statehold.errors import UsageError
from statehold.record import Message
from statehold.snapshot.store.base import is_safe_key
from statehold.snapshot.store.files import FileStore

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
Role = Literal["increment", "full", "input", "segment"]
#: the folder of those fulls that were not in Kafka, in the layout of a store
FULLS: Final = "fulls"

README: Final = """# A statehold backup

`manifest.json` says of which service and what each file is; it was written last, so a directory without it is no
backup. `sha256` and `bytes` are those of the file.

Each file holds the records of one partition of one topic, one JSON object a line, in the order of their offsets:

    {"offset": 7, "timestamp": 1795238641836, "key": null, "value": "AQpNAA...", "headers": [["name", "dmFsdWU="]]}

Keys, values and header values are base64, or null. `input-P.jsonl` has the records that the service was given, as
their producers wrote them. `increment-P.jsonl` and `full-P.jsonl` are the state: each value is a frame, 16 bytes of
head and a body of msgpack that may be compressed by zstd (docs/format.md of statehold describes it, byte by byte).

Where the service kept its fulls elsewhere than in Kafka, `full-P.jsonl` holds their manifests alone, and `fulls/` their
chunks, in the layout of that store: frames with their length (4 bytes, little endian) before each.

Restore it with `statehold snapshot restore MODULE:SERVICE --from DIRECTORY`.
"""


class Line(msgspec.Struct, frozen=True):
    """One record, as it stands in a file."""

    offset: int
    timestamp: int
    key: str | None = None
    value: str | None = None
    headers: list[tuple[str, str | None]] = []


class File(msgspec.Struct, frozen=True):
    """One file. `start` and `end` are offsets of the topic: all committed records in [start, end) are here."""

    name: str
    topic: str
    partition: int
    role: Role
    start: int
    end: int
    records: int
    bytes: int
    sha256: str


class Saved(msgspec.Struct, frozen=True):
    """What a partition's last mark said."""

    partition: int
    n: int
    position: int
    #: the oldest position whose state can be restored from here
    oldest: int
    keys: int
    digest: str
    lineage: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    backup: str
    service: str
    namespace: str
    input: str
    partitions: list[Saved]
    #: topic -> topic id of input, increment and full
    topic_ids: dict[str, str]
    #: topic -> partition count of the outputs
    outputs: dict[str, int] = {}
    files: list[File]
    statehold: str
    #: ISO 8601, by the clock of who made it
    made: str

    @property
    def with_input(self) -> bool:
        return any(file.role == "input" for file in self.files)

    def file(self, role: Role, partition: int) -> File | None:
        return next((each for each in self.files if (each.role, each.partition) == (role, partition)), None)


def prepare(directory: Path) -> None:
    """:raises UsageError: there is something in it already."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is not empty; name a new directory for each backup")
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(0o700)
    with private(directory / "README.md") as file:
        file.write(README.encode())


def private(path: Path) -> BinaryIO:
    """Open a new file that only this user may read: a backup holds what the state holds."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def add_segment(directory: Path, topic: str, partition: int, key: str, data: bytes) -> File:
    """Write a segment of a full, durably; `key` is that of its store."""
    FileStore(str(directory.absolute() / FULLS), private=True).put(key, data)
    checksum = hashlib.sha256(data).hexdigest()
    return File(f"{FULLS}/{key}", topic, partition, "segment", 0, 0, 0, len(data), checksum)


class Writing:
    """Writes one file; `records` and the checksum are counted on the way."""

    def __init__(self, directory: Path, role: Role, topic: str, partition: int) -> None:
        self._path = directory / f"{role}-{partition}.jsonl"
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

    def done(self, start: int, end: int) -> File:
        """On the disk when this returns."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return File(
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


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """At once or not at all."""
    unfinished = directory / f".{MANIFEST}"
    with private(unfinished) as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(directory / MANIFEST)


def read_manifest(directory: Path) -> Manifest:
    """:raises UsageError: there is none, or it is of another format."""
    try:
        manifest = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Manifest)
    except OSError as error:
        raise UsageError(f"{directory} is no backup, or one that was not finished: no {MANIFEST}") from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{directory / MANIFEST} cannot be read: {error}") from error
    unsafe = [file.name for file in manifest.files if not is_safe_key(file.name)]
    if unsafe:
        raise UsageError(f"{directory / MANIFEST} names {unsafe[0]!r}, which is not in the backup: it was changed")
    if manifest.format != FORMAT:
        raise UsageError(f"{directory}: a backup of format {manifest.format}, this statehold reads {FORMAT}")
    return manifest


def check(directory: Path, file: File) -> list[int]:
    """Compare a file with the manifest; where each of its lines begins.

    :raises UsageError: it is missing or not as it was written.
    """
    path, digest, starts, at = directory / file.name, hashlib.sha256(), [], 0
    try:
        with path.open("rb") as lines:
            for line in lines:
                starts.append(at)
                at += len(line)
                digest.update(line)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; the manifest names it") from error
    if digest.hexdigest() != file.sha256 or at != file.bytes:
        raise UsageError(f"{path} is not what the manifest says ({at} bytes, {file.bytes} expected, or other content)")
    return starts


def _line(message: Message) -> Line:
    headers = [(name, _text(value)) for name, value in message.headers() or ()]
    return Line(message.offset() or 0, message.timestamp()[1], _text(message.key()), _text(message.value()), headers)


def _text(data: Any) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
