"""Keeps the newest full snapshot on a local disk, to save the download after a restart.

There is one file per partition: the chunks as in Kafka, then the manifest and its reference. A restore uses the file
for a reference of the last commit record if it holds the same manifest bytes as Kafka at that offset. It verifies each
chunk against the manifest, and the restored state against the digest of the commit record. If anything differs, it
removes the file and reads the full snapshot from Kafka. A missing or damaged file is never an error.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Literal

import msgspec

from statehold.common.decoding import UNREADABLE
from statehold.common.names import Names
from statehold.snapshot.format import frame
from statehold.snapshot.format.blocks import block, blocks
from statehold.snapshot.format.records import FullRef
from statehold.snapshot.store.files import sync_directory

_MAGIC: Final = b"statehld"
#: end of the file: where the manifest begins, lengths of manifest and reference, magic
_TAIL: Final = struct.Struct("<QII8s")
_SUFFIX: Final = ".full"
_decode_ref: Final = msgspec.msgpack.Decoder(FullRef).decode

Note = Callable[[Literal["local_full_kept", "local_full_discarded", "local_full_failed"], dict[str, object]], None]


class LocalUnusable(Exception):
    """This restore cannot use the file; the text says why."""


class LocalFullSnapshots:
    """The file of one partition, used by the partition's thread. No method raises an error of the disk."""

    def __init__(self, directory: Path, names: Names, partition: int, note: Note) -> None:
        self._directory, self._note = directory, note
        self.path = directory / f"{names.group}.{names.input}.{partition}{_SUFFIX}"

    def has(self, ref: FullRef) -> bool:
        """Return whether the file claims to hold this full snapshot. Remove any other or unreadable file."""
        try:
            with self.path.open("rb") as file:
                found = _tail(file)[1]
        except FileNotFoundError:
            return False
        except (OSError, frame.BadFrame) as error:
            self.discard(str(error))
            return False
        if found != ref:
            self.discard(
                f"it holds the full snapshot at offset {found.offset}, the commit record refers to {ref.offset}"
            )
            return False
        return True

    def chunks(self, manifest: bytes) -> Iterator[bytes]:
        """Return the chunks, if the file holds the full snapshot with this manifest.

        :raises LocalUnusable: it holds another, or cannot be read. :raises frame.BadFrame: it is damaged.
        """
        try:
            with self.path.open("rb") as file:
                end, _, found = _tail(file)
                if found != manifest:
                    raise LocalUnusable("its manifest is not the one in Kafka: another service, generation or snapshot")
                file.seek(0)
                yield from blocks(file, end)
        except OSError as error:
            raise LocalUnusable(f"cannot be read: {error}") from error

    def discard(self, why: str) -> None:
        """Remove the file and log why."""
        self._note("local_full_discarded", {"path": str(self.path), "cause": why})
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self._note("local_full_failed", {"path": str(self.path), "cause": str(error)})

    def begin(self, after: FullRef | None = None) -> LocalWriter:
        """Begin a new file, which replaces the old one when it is kept.

        `after`: it has all chunks of this full snapshot; they are copied from the old file.
        """
        return LocalWriter(self._directory, self.path, self._note, after)


class LocalWriter:
    """Writes the chunks of one full snapshot until `keep` or `drop`. A disk error only ends the copy."""

    def __init__(self, directory: Path, path: Path, note: Note, after: FullRef | None = None) -> None:
        self._path, self._note, self._after = path, note, after
        self._new = _unfinished(path)
        self._file: BinaryIO | None = None
        self._thread: threading.Thread | None = None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_leftovers(path)
            self._file = _create(self._new)
        except OSError as error:
            self._failed(error)

    def add(self, chunk: bytes) -> None:
        """Write another chunk to the page cache."""
        if self._file is None:
            return
        try:
            self._file.write(block(chunk))
        except OSError as error:
            self._failed(error)

    def keep(self, manifest: bytes, ref: FullRef) -> None:
        """Make the complete copy durable and replace the old file, on a thread."""
        file, self._file = self._file, None
        if file is not None:
            finish = partial(self._finish, file, manifest, ref)
            self._thread = threading.Thread(target=finish, name="local-full", daemon=True)
            self._thread.start()

    def drop(self) -> None:
        """Discard the copy."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # the next writer removes the rest
                file.close()
                self._new.unlink(missing_ok=True)

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` until the kept copy has replaced the old file."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _finish(self, file: BinaryIO, manifest: bytes, ref: FullRef) -> None:
        try:
            with file:
                if self._after is None:
                    _end(file, manifest, ref)
            if self._after is not None:
                self._join(self._after, manifest, ref)
            self._new.replace(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            self._failed(error)
        else:
            self._note("local_full_kept", {"path": str(self._path), "full": ref.offset})

    def _join(self, after: FullRef, manifest: bytes, ref: FullRef) -> None:
        """Put the chunks of the old file before the new ones. :raises OSError: it is not that of `after`."""
        added, joined = self._new, _unfinished(self._path)
        try:
            with self._path.open("rb") as old, added.open("rb") as new, _create(joined) as file:
                end = _end_of(old, after)
                old.seek(0)
                while (left := end - old.tell()) > 0 and (data := old.read(min(left, 1 << 20))):
                    file.write(data)
                shutil.copyfileobj(new, file, 1 << 20)
                _end(file, manifest, ref)
        except frame.BadFrame as error:
            joined.unlink(missing_ok=True)
            raise OSError(f"{self._path}: {error}") from error
        except OSError:
            joined.unlink(missing_ok=True)
            raise
        added.unlink()
        self._new = joined

    def _failed(self, error: OSError) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # because close flushes, and the flush fails as the write did
                file.close()
        with contextlib.suppress(OSError):
            self._new.unlink(missing_ok=True)
        self._note("local_full_failed", {"path": str(self._path), "cause": str(error)})


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.new")


def _create(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", 1 << 20)


def _end(file: BinaryIO, manifest: bytes, ref: FullRef) -> None:
    """Write what follows the chunks, and flush the file to the disk."""
    reference = msgspec.msgpack.encode(ref)
    tail = _TAIL.pack(file.tell(), len(manifest), len(reference), _MAGIC)
    file.write(manifest + reference + tail)
    file.flush()
    os.fsync(file.fileno())


def _end_of(file: BinaryIO, ref: FullRef) -> int:
    """Return where the chunks of this full snapshot end. :raises frame.BadFrame: the file holds another one."""
    end, found, _ = _tail(file)
    if found != ref:
        raise frame.BadFrame(f"it holds the full snapshot at offset {found.offset}, not the one at {ref.offset}")
    return end


def _tail(file: BinaryIO) -> tuple[int, FullRef, bytes]:
    """Return where the chunks end, the reference and the manifest.

    :raises frame.BadFrame: the file is foreign or incomplete.
    """
    size = file.seek(0, os.SEEK_END)
    if size < _TAIL.size:
        raise frame.BadFrame("too short")
    file.seek(size - _TAIL.size)
    end, manifest, reference, magic = _TAIL.unpack(file.read(_TAIL.size))
    if magic != _MAGIC or end + manifest + reference + _TAIL.size != size:
        raise frame.BadFrame("not the end of a whole file")
    file.seek(end)
    found = file.read(manifest)
    try:
        return end, _decode_ref(file.read(reference)), found
    except UNREADABLE as error:
        raise frame.BadFrame(f"reference: {error}") from error


def _remove_leftovers(path: Path) -> None:
    """Remove the unfinished files of processes that have ended."""
    for leftover in path.parent.glob(f"{path.name}.*.new"):
        process = leftover.name[len(path.name) + 1 :].partition("-")[0]
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            leftover.unlink(missing_ok=True)
        except (ValueError, PermissionError):
            continue
