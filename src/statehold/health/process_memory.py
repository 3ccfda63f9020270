"""Memory limit and memory use of this process, and the predicted need of a state. Linux only; 0 elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Bytes of memory per key, and per byte of key and value in a full snapshot (docs/how-to/operate/sizing.md).
_PER_KEY: Final = 240
_PER_BYTE: Final = 1.1
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
#: cgroups v1 represent "no limit" by a number slightly below 2 ** 63.
_NO_LIMIT: Final = 2**60


@dataclass(slots=True)
class _Sharing:
    """The processes of this one's supervisor."""

    processes: int = 1


_sharing: Final = _Sharing()


def predicted(keys: int, size: int) -> int:
    """Return the bytes of memory of a restored state; `size` is its full snapshot's size before compression."""
    return round(keys * _PER_KEY + size * _PER_BYTE)


def used() -> int:
    """Return the resident bytes of this process; 0 if unknown."""
    return _pages(1)


def of_files() -> int:
    """Return the part of `used` that are pages of files, which the kernel frees when memory is short."""
    return _pages(2)


def _pages(column: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[column]) * _PAGE
    return 0


def limit(process: Path = Path("/proc/self"), cgroups: Path = Path("/sys/fs/cgroup")) -> tuple[int, str]:
    """Return the smallest limit of the machine and the enclosing cgroups, and its source; (0, '') if unknown.

    It is this process's part of it if a supervisor's processes share it.
    """
    allowed, source = min([*_of_machine(process.parent), *_of_cgroups(process, cgroups)], default=(0, ""))
    if _sharing.processes > 1 and allowed:
        return allowed // _sharing.processes, f"{source}, shared by {_sharing.processes} processes"
    return allowed, source


def share_among(processes: int) -> None:
    """Divide the limit among this number of processes, of which this is one."""
    _sharing.processes = processes


def _of_machine(proc: Path) -> Iterator[tuple[int, str]]:
    with suppress(OSError, ValueError, IndexError):
        first = (proc / "meminfo").read_text(encoding="ascii").split("\n", 1)[0]
        yield int(first.split()[1]) * 1024, "the machine's memory"


def _of_cgroups(process: Path, cgroups: Path) -> Iterator[tuple[int, str]]:
    """Yield the limits of both cgroup versions, from this process's group up to the root."""
    with suppress(OSError):
        for line in (process / "cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                places, name = [cgroups, cgroups / "unified"], "memory.max"
            elif "memory" in controllers.split(","):
                places, name = [cgroups / "memory"], "memory.limit_in_bytes"
            else:
                continue
            inside = Path(path.lstrip("/"))
            for place in places:
                for group in (inside, *inside.parents):
                    yield from _read(place / group / name)


def _read(file: Path) -> Iterator[tuple[int, str]]:
    with suppress(OSError, ValueError):
        allowed = int(file.read_text(encoding="ascii"))
        if allowed < _NO_LIMIT:
            yield allowed, str(file)
