"""Checks this machine and its installed software."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Final

from statehold.disk.usage import SCRUB, scrub_note
from statehold.health.death_notes import state_directory
from statehold.kafka.survey.librdkafka import version
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.report import Finding, FindingsOf

OLDEST: Final = (2, 16, 0)
#: first and last release of a range, and its fault
BAD: Final = (
    ((2, 10, 0), (2, 10, 0), "loses messages (librdkafka issue 5088)"),
    ((1, 0, 0), (2, 4, 99), "may lose messages of a transaction (librdkafka issues 4438, 4736)"),
)
#: file descriptors: of the process, of each partition's producer, and of each of its connections (measured)
_PROCESS, _PRODUCER, _CONNECTION = 256, 8, 3
#: file systems of other machines, and those that are memory
_REMOTE: Final = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "gluster", "tmpfs", "ramfs")
#: bytes of room below which a directory is nearly full
_LEAST: Final = 1_000_000_000
#: seconds for which a difference is shown, and in which a scrub should read all files once
_DIFFERED, _UNREAD = 30 * 86_400, 7 * 86_400


class ClientLibrary:
    name: ClassVar = "client-library"
    looks_at: ClassVar = "the release of librdkafka, and ranges that are known to be bad"
    fails: ClassVar = f"it is in such a range, or older than {'.'.join(map(str, OLDEST))}"
    warns: ClassVar = "-"

    def __init__(self, found: tuple[int, int, int] | None = None) -> None:
        self._version = found or version()

    def look(self, case: Case) -> Iterator[Finding]:
        seen, now = FindingsOf(self), self._version
        shown, fix = ".".join(map(str, now)), "pip install --upgrade 'confluent-kafka>=2.16.1,<3'"
        for low, high, fault in BAD:
            if low <= now <= high:
                yield seen.failed("librdkafka", f"{shown} {fault}", fix)
                return
        if now < OLDEST:
            yield seen.failed("librdkafka", f"{shown} is older than what statehold was proven with", fix)


class FileLimit:
    name: ClassVar = "file-limit"
    looks_at: ClassVar = "RLIMIT_NOFILE against what one process needs if it gets every partition"
    fails: ClassVar = "-"
    warns: ClassVar = "too few: a takeover of everything by one instance would fail"

    def look(self, case: Case) -> Iterator[Finding]:
        partitions, brokers = len(case.topic(case.names.input).partitions), len(case.brokers)
        needed = _PROCESS + partitions * (_PRODUCER + _CONNECTION * brokers)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < needed:
            yield FindingsOf(self).warned(
                "RLIMIT_NOFILE",
                f"{soft} files may be open, {partitions} partitions with {brokers} brokers need {needed}",
                f"ulimit -n {needed}, or LimitNOFILE={needed} in the unit",
            )


class LocalDisk:
    name: ClassVar = "local-disk"
    looks_at: ClassVar = "the directory of tables on disk, if state.storage or state.dir names one"
    fails: ClassVar = "it cannot be written"
    warns: ClassVar = "it has less room than its files take, or is on a network file system, or in memory"

    def __init__(
        self,
        mounts: Path = Path("/proc/mounts"),
        room: Callable[[Path], int] = lambda place: shutil.disk_usage(place).free,
    ) -> None:
        self._mounts, self._room = mounts, room

    def look(self, case: Case) -> Iterator[Finding]:
        state, seen = case.settings.state, FindingsOf(self)
        directory = _directory(case)
        if directory is None or not (state.dir or state.storage == "disk"):
            return
        place = next(each for each in (directory, *directory.parents) if each.exists())
        if not os.access(place, os.W_OK | os.X_OK) or os.statvfs(place).f_flag & os.ST_RDONLY:
            yield seen.failed("state.dir", f"{place} cannot be written", f"chown {os.geteuid()} {place}")
            return
        room, used = self._room(place), sum(each.stat().st_size for each in directory.glob("*/*/data.mdb"))
        if room < max(used, _LEAST):
            yield seen.warned(
                "state.dir",
                f"{place} has room for {room / 1e6:,.0f} MB, and its files take {used / 1e6:,.0f} MB",
                f"df -h {place}, and free room, or set state.dir to a larger disk",
            )
        if (kind := _file_system(place, self._mounts)).startswith(_REMOTE):
            yield seen.warned("state.dir", f"{place} is on {kind}", "set state.dir to a directory on a local disk")


class LocalScrub:
    name: ClassVar = "local-scrub"
    looks_at: ClassVar = "what the scrub has found in the files of tables on disk on this machine"
    fails: ClassVar = "-"
    warns: ClassVar = "files have differed in the last 30 days, or were written 7 days after the last pass"

    def look(self, case: Case) -> Iterator[Finding]:
        state, seen = case.settings.state, FindingsOf(self)
        directory = _directory(case)
        if directory is None or not (state.dir or state.storage == "disk"):
            return
        for base in sorted(each.parent for each in directory.glob(f"*/{SCRUB}")):
            note = scrub_note(base)
            if note is None:
                continue
            if note.differed and case.wall() - note.differed < _DIFFERED:
                yield seen.warned(
                    base.name,
                    f"its files differed {(case.wall() - note.differed) / 3600:,.1f} h ago: {note.cause}",
                    "statehold explain StateholdLocalStoreDiffers",
                )
            written = max((each.stat().st_mtime for each in base.glob("*/data.mdb")), default=0.0)
            if state.scrub and written - note.time > _UNREAD:
                yield seen.warned(
                    base.name,
                    f"its files were written {(written - note.time) / 86_400:,.0f} days after the last pass over them",
                    f"set state.scrub above {state.scrub}, because one pass takes too long",
                )


def _directory(case: Case) -> Path | None:
    if case.settings.state.dir:
        return Path(case.settings.state.dir)
    own = state_directory(case.settings.service.state_dir)
    return None if own is None else own / "tables"


def _file_system(place: Path, mounts: Path) -> str:
    """Return the type of the file system with this path; '' where the machine does not list them."""
    try:
        lines = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return ""
    holding = [(len(each[1]), each[2]) for each in lines if place.resolve().is_relative_to(each[1])]
    return max(holding, default=(0, ""))[1]


CHECKS = (ClientLibrary, FileLimit, LocalDisk, LocalScrub)
