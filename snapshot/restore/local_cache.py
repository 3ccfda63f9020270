"""The newest full on a local disk: it saves the download after a restart, and is believed only when it is proven.

One file per partition: chunks as they stand in Kafka, then the manifest and its reference. It is used for a reference
of the last mark, if it holds the very bytes of the manifest that Kafka has at that offset; then each chunk must have
the checksum that this manifest names, and the restored state the digest of the mark, as always. Whatever is wrong,
the file is removed and the full comes from Kafka. Its absence or damage is never an error.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Literal

import msgspec

from statehold.common.names import Names
from statehold.snapshot.format import frame
from statehold.snapshot.format.blocks import block, blocks
from statehold.snapshot.format.records import FullRef

_MAGIC: Final = b"statehld"
#: where the manifest begins, how long manifest and reference are, and the magic, at the end of the file
_TAIL: Final = struct.Struct("<QII8s")
_SUFFIX: Final = ".full"

Note = Callable[[Literal["local_full_kept", "local_full_discarded", "local_full_failed"], dict[str, object]], None]


class LocalUnusable(Exception):
    """The file is no use for this restore, and why."""


class LocalFulls:
    """The file of one partition; used by the partition's thread. No method raises for what a disk may do."""

    def __init__(self, directory: Path, names: Names, partition: int, note: Note) -> None:
        self._directory, self._note = directory, note
        self.path = directory / f"{names.group}.{names.input}.{partition}{_SUFFIX}"

    def has(self, ref: FullRef) -> bool:
        """Whether the file claims to hold this full. One that holds another, or nothing readable, is removed."""
        try:
            with self.path.open("rb") as file:
                found = _tail(file)[1]
        except FileNotFoundError:
            return False
        except (OSError, frame.BadFrame) as error:
            self.discard(str(error))
            return False
        if found != ref:
            self.discard(f"it holds the full at offset {found.offset}, the mark refers to {ref.offset}")
            return False
        return True

    def chunks(self, manifest: bytes) -> Iterator[bytes]:
        """The chunks, if the file is of the full with this very manifest.

        :raises LocalUnusable: it is not, or it cannot be read. :raises frame.BadFrame: it is damaged.
        """
        try:
            with self.path.open("rb") as file:
                end, _, found = _tail(file)
                if found != manifest:
                    raise LocalUnusable("its manifest is not the one in Kafka: another service, lineage or full")
                file.seek(0)
                yield from blocks(file, end)
        except OSError as error:
            raise LocalUnusable(f"cannot be read: {error}") from error

    def discard(self, why: str) -> None:
        """Remove the file, and say why."""
        self._note("local_full_discarded", {"path": str(self.path), "cause": why})
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self._note("local_full_failed", {"path": str(self.path), "cause": str(error)})

    def begin(self) -> LocalWriter:
        """A new file beside the old one, which it replaces when it is kept."""
        return LocalWriter(self._directory, self.path, self._note)


class LocalWriter:
    """Takes the chunks of one full as they pass by; `keep` or `drop` ends it. A disk that fails only ends the copy."""

    def __init__(self, directory: Path, path: Path, note: Note) -> None:
        self._path, self._note = path, note
        self._new = path.with_name(f"{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.new")
        self._file: BinaryIO | None = None
        self._thread: threading.Thread | None = None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_leftovers(path)
            self._file = open(os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", 1 << 20)  # noqa: SIM115
        except OSError as error:
            self._failed(error)

    def add(self, chunk: bytes) -> None:
        """Write another chunk; to the page cache, so it takes a memory copy."""
        if self._file is None:
            return
        try:
            self._file.write(block(chunk))
        except OSError as error:
            self._failed(error)

    def keep(self, manifest: bytes, ref: FullRef) -> None:
        """It was proven or written to the end: make it durable and put it in the old one's place, on a thread."""
        file, self._file = self._file, None
        if file is not None:
            finish = partial(self._finish, file, manifest, ref)
            self._thread = threading.Thread(target=finish, name="local-full", daemon=True)
            self._thread.start()

    def drop(self) -> None:
        """Forget it."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # the next writer removes what stays
                file.close()
                self._new.unlink(missing_ok=True)

    def wait(self, seconds: float) -> None:
        """Until what is kept is in its place, or so many seconds have passed."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _finish(self, file: BinaryIO, manifest: bytes, ref: FullRef) -> None:
        try:
            with file:
                reference = msgspec.msgpack.encode(ref)
                tail = _TAIL.pack(file.tell(), len(manifest), len(reference), _MAGIC)
                file.write(manifest + reference + tail)
                file.flush()
                os.fsync(file.fileno())
            self._new.replace(self._path)
            _sync_directory(self._path.parent)
        except OSError as error:
            self._failed(error)
        else:
            self._note("local_full_kept", {"path": str(self._path), "full": ref.offset})

    def _failed(self, error: OSError) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what it could not write before, it cannot write now
                file.close()
        with contextlib.suppress(OSError):
            self._new.unlink(missing_ok=True)
        self._note("local_full_failed", {"path": str(self._path), "cause": str(error)})


def _tail(file: BinaryIO) -> tuple[int, FullRef, bytes]:
    """Where the chunks end, the reference and the manifest.

    :raises frame.BadFrame: it is not a file of ours, or not a whole one.
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
        return end, msgspec.msgpack.decode(file.read(reference), type=FullRef), found
    except msgspec.DecodeError as error:
        raise frame.BadFrame(f"reference: {error}") from error


def _remove_leftovers(path: Path) -> None:
    """What writers of this file left behind whose process is gone."""
    for leftover in path.parent.glob(f"{path.name}.*.new"):
        process = leftover.name[len(path.name) + 1 :].partition("-")[0]
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            leftover.unlink(missing_ok=True)
        except (ValueError, PermissionError):
            continue


def _sync_directory(directory: Path) -> None:
    """The new name must survive a power cut, too."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
