"""Files next to the tables' files: who has used them last, whether their end was clean, what a scrub has found."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

#: processes in a row that may end before a commit, because damaged pages may end a process by a signal
_STARTS: Final = 3
#: what a disk without room, or a quota, raises
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
#: the note of the scrub, next to the directories of a partition, because it outlives files that differ
SCRUB: Final = "scrub"


class UnfitFiles(Exception):
    """The files are not to be used; the text says why."""


class _Note(msgspec.Struct, frozen=True):
    #: the boot of the machine in which the files were open; '': they were closed and flushed
    boot: str = ""
    #: starts since the last commit
    starts: int = 0
    #: what was found damaged
    damage: str = ""


class ScrubNote(msgspec.Struct, frozen=True):
    """The last pass of the scrub over a partition's files on this machine (rule X7)."""

    #: of its end, in seconds since 1970
    time: float
    rows: int
    #: `equal`: the digest is the commit record's; `rows_only`: each row was checked alone; `differs`
    outcome: str
    #: end of the last pass that found a difference, in seconds since 1970, and what it was; 0: none did
    differed: float = 0.0
    cause: str = ""

    def after(self, before: ScrubNote | None) -> ScrubNote:
        """Return this note with what an earlier pass found."""
        if self.differed or before is None:
            return self
        return msgspec.structs.replace(self, differed=before.differed, cause=before.cause)


_decode: Final = msgspec.json.Decoder(_Note).decode
_decode_scrub: Final = msgspec.json.Decoder(ScrubNote).decode


class Usage:
    """Used by the process that holds the lock of the directory. Each method may raise OSError."""

    def __init__(self, path: Path, boot: str) -> None:
        self._path, self._boot = path, boot
        self._note = _Note()

    def check(self) -> None:
        """:raises UnfitFiles: the files may not hold what was written (rule X3), or were found damaged."""
        try:
            self._note = _decode(self._path.read_bytes())
        except FileNotFoundError:
            raise UnfitFiles("the file usage is missing") from None
        except msgspec.DecodeError as error:
            raise UnfitFiles(f"the file usage cannot be read: {error}") from error
        note = self._note
        if note.damage:
            raise UnfitFiles(note.damage)
        if note.boot and (note.boot != self._boot or not self._boot):
            raise UnfitFiles("the machine has stopped while they were open, and they are not flushed at each commit")
        if note.starts >= _STARTS:
            raise UnfitFiles(f"{note.starts} processes in a row ended before a commit")

    def begin(self) -> None:
        """The files are open from here on, before anything is written to them."""
        self._write(_Note(self._boot or "unknown", self._note.starts + 1))

    def proven(self) -> None:
        """The process has committed."""
        if self._note.starts:
            self._write(msgspec.structs.replace(self._note, starts=0))

    def condemn(self, cause: str) -> None:
        self._write(msgspec.structs.replace(self._note, damage=cause[:500]))

    def end(self, *, flushed: bool) -> None:
        """The files are closed, so this process has not ended by them."""
        self._write(msgspec.structs.replace(self._note, boot="" if flushed else self._note.boot, starts=0))

    def _write(self, note: _Note) -> None:
        data, new = msgspec.json.encode(note), self._path.with_suffix(".new")
        try:
            with new.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            if error.errno not in _FULL or not self._path.exists():
                raise
            with suppress(OSError):
                new.unlink()
            _overwrite(self._path, data)
        self._note = note


def _overwrite(path: Path, data: bytes) -> None:
    """Write over the note, because a disk that is full has room for as many bytes as it had; spaces may follow.

    If the machine stops meanwhile, the note may be torn, and then the files are not used.
    """
    with path.open("r+b", buffering=0) as file:
        length = os.fstat(file.fileno()).st_size
        file.write(data.ljust(length))
        os.fsync(file.fileno())


def scrub_note(base: Path) -> ScrubNote | None:
    """Return the note in the directory of a partition; None without a readable one."""
    with suppress(OSError, msgspec.DecodeError):
        return _decode_scrub((base / SCRUB).read_bytes())
    return None


def write_scrub_note(base: Path, note: ScrubNote) -> None:
    """Replace the note, without a flush, because no decision of a start depends on it. It may fail."""
    new = base / f"{SCRUB}.new"
    with suppress(OSError):
        new.write_bytes(msgspec.json.encode(note))
        new.replace(base / SCRUB)


def boot_id() -> str:
    """Return what names this boot of the machine; '' where that is not known."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
