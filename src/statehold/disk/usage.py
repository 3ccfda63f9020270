"""A file next to the tables' files that says who has used them last, and whether their end was clean."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

#: processes in a row that may end before a commit, because damaged pages may end a process by a signal
_STARTS: Final = 3


class UnfitFiles(Exception):
    """The files are not to be used; the text says why."""


class _Note(msgspec.Struct, frozen=True):
    #: the boot of the machine in which the files were open; '': they were closed and flushed
    boot: str = ""
    #: starts since the last commit
    starts: int = 0
    #: what was found damaged
    damage: str = ""


_decode: Final = msgspec.json.Decoder(_Note).decode


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
        new = self._path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(note))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        self._note = note


def boot_id() -> str:
    """Return what names this boot of the machine; '' where that is not known."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""
