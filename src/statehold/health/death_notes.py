"""Notes on disk at which record a process died, so that the next owner of the partition knows it.

There is one small file per partition in `service.state_dir`. It exists while the partition is live, and a clean end
removes it: a file of a process that has ended is a death. After a death the worker also writes which records the
handler has, before each call. Without a death nothing is written between the takeover and the end.

The file need not survive the machine, so nothing is synced: what a process has written outlives it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

#: the file has always the same length, so that one write replaces it
_BYTES: Final = 2048
_NAME: Final = 200
#: a process in the list of processes that has ended
_ENDED: Final = ("Z", "X")

Report = Callable[[str, OSError], None]


class Handled(msgspec.Struct, frozen=True):
    """The records of one handler call."""

    #: of the first one
    topic: str
    offset: int
    #: places of the first and the last one in the partition's order: offsets if the service has one input
    first: int
    last: int

    @property
    def single(self) -> bool:
        return self.first == self.last

    def passed(self, positions: Mapping[str, int]) -> bool:
        """Return whether these positions are behind the records."""
        if self.single:
            return positions.get(self.topic, 0) > self.offset
        return sum(positions.values()) > self.last

    def includes(self, other: Handled) -> bool:
        return self.first <= other.first and other.last <= self.last


class DeathNote(msgspec.Struct, frozen=True):
    """The contents of the file."""

    #: the process that has the partition; "": it gave the partition back
    process: str = ""
    #: the input's topic id and `service.code_version`: another topic has other records, another release may handle it
    scope: str = ""
    #: deaths in a row at `suspect`
    deaths: int = 0
    #: the records that the handler had at the last death; None: unknown
    suspect: Handled | None = None
    #: the records that the handler has now
    handling: Handled | None = None

    def after(self, positions: Mapping[str, int], *, died: bool) -> DeathNote:
        """Return the history for the next owner. `positions`: the committed ones, by input."""
        suspect, deaths, had = self.suspect, self.deaths, self.handling
        if suspect is not None and suspect.passed(positions):
            suspect, deaths = None, 0
        if died and had is not None and not had.passed(positions):
            deaths = deaths + 1 if suspect is None or suspect.includes(had) else 1
            suspect = had
        elif died and suspect is None:
            deaths = 1
        return DeathNote("", self.scope, deaths, suspect)


_decode = msgspec.json.Decoder(DeathNote).decode


class DeathNotes:
    """The file of one partition for one assignment. Used by the partition's thread; no method raises an error."""

    def __init__(self, directory: Path, name: str, scope: str, failed: Report) -> None:
        """`name`: of the file. `scope`: see `DeathNote`. `failed` reports that the file cannot be used."""
        self.path = directory / f"{_short(name)}.deaths"
        self._scope, self._failed = scope, failed
        self._file = -1
        self._note = DeathNote()
        #: a record that has ended the process too often was kept from the handler once, and an operator's retry follows
        self.faced = False

    @property
    def deaths(self) -> int:
        """Deaths in a row at `suspect`, or 1 if it is unknown."""
        return self._note.deaths

    @property
    def suspect(self) -> Handled | None:
        """The records that the handler had at the last death, unless they are committed."""
        return self._note.suspect

    def open(self, positions: Mapping[str, int]) -> bool:
        """Read the history, and note that this process has the partition now. Return whether its last owner died."""
        found = self._read()
        if found is None or found.scope != self._scope:
            found = DeathNote(scope=self._scope)
        died = bool(found.process) and found.process != _THIS.name and not is_running(found.process)
        self._note = found.after(positions, died=died)
        self._write(handling=None)
        return died

    def begin(self, handled: Handled) -> None:
        """Note what the handler gets now."""
        self._write(handling=handled)

    def end(self) -> None:
        """Note that the handler has returned."""
        self._write(handling=None)

    def forget(self) -> None:
        """Note that the partition has passed what the last owner can have died at."""
        self._note = DeathNote(scope=self._scope)

    def excuse(self) -> None:
        """Note that the end of this process will be no death: it waits for something outside. Any thread."""
        if self._file >= 0:
            self._put(self._note)

    def close(self, positions: Mapping[str, int]) -> None:
        """Note that this process gives the partition back; keep only the deaths at a record that is still to come."""
        file, self._file = self._file, -1
        if file < 0:
            return
        try:
            os.close(file)
            there, kept = self._read(), self._note.after(positions, died=False)
            if there is not None and there.process != _THIS.name:
                return  # a new owner on this machine
            if kept.suspect is None:
                self.path.unlink(missing_ok=True)
            else:
                self.path.write_bytes(_packed(kept))
        except OSError as error:
            self._failed(str(self.path), error)

    def _read(self) -> DeathNote | None:
        try:
            return _decode(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except msgspec.DecodeError:  # the machine went down; the next write replaces it
            return None
        except OSError as error:
            self._failed(str(self.path), error)
            return None

    def _write(self, handling: Handled | None) -> None:
        self._put(msgspec.structs.replace(self._note, process=_THIS.name, handling=handling))

    def _put(self, note: DeathNote) -> None:
        try:
            if self._file < 0:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                os.truncate(self._file, 0)
            os.pwrite(self._file, _packed(note), 0)
        except OSError as error:
            self._failed(str(self.path), error)


def state_directory(setting: str) -> Path | None:
    """Return the directory for `service.state_dir`; None for `off`, and where no place is left for `auto`."""
    if setting != "auto":
        return None if setting == "off" else Path(setting)
    for place in _candidates():
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = place.lstat()
        except OSError:
            continue
        if found.st_uid == os.geteuid() and not found.st_mode & 0o022 and os.access(place, os.W_OK | os.X_OK):
            return place
    return None


def is_running(process: str) -> bool:
    """Return whether a process of this machine, by `name_of`, has not ended."""
    pid, _, started = process.partition("-")
    if not pid.isdecimal():
        return False
    name = name_of(int(pid))
    if name:
        return name == process
    if started:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def name_of(pid: int) -> str:
    """Return the process id with its start, because ids come again; '' if it has ended, or without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    return "" if fields[0] in _ENDED else f"{pid}-{fields[19]}-{boot}"


class _This:
    """The calling process, also after a fork."""

    def __init__(self) -> None:
        self._known = (-1, "")

    @property
    def name(self) -> str:
        pid = os.getpid()
        if self._known[0] != pid:
            self._known = pid, name_of(pid) or str(pid)
        return self._known[1]


_THIS: Final = _This()


def _candidates() -> list[Path]:
    """Return the places for `auto`, the best first."""
    unit = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    of_user = os.environ.get("XDG_STATE_HOME", "")
    home = os.environ.get("HOME", "")
    own = f"statehold-{os.geteuid()}"
    return [
        *([Path(unit)] if unit else []),
        *([Path(of_user) / "statehold"] if of_user else []),
        *([Path(home) / ".local/state/statehold"] if home else []),
        Path(tempfile.gettempdir()) / own,
    ]


def _short(name: str) -> str:
    """Return a name that leaves room for an ending within the 255 bytes of a file's name."""
    return name if len(name) <= _NAME else f"{name[:_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _packed(note: DeathNote) -> bytes:
    return msgspec.json.encode(note).ljust(_BYTES)
