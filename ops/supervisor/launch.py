"""Builds the command of each process: a new `statehold run` with a name and a control socket of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

#: variables of the supervisor's own supervisor, which a process must not answer
_NOT_PASSED_ON = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID"})
#: the command line of this environment
STATEHOLD: Final = (sys.executable, "-m", "statehold.ops.cli.entry")


class Launch(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process gets from its supervisor, as JSON in the hidden option `--launch`."""

    #: of a pipe whose other end the supervisor holds; its end is the supervisor's
    pipe: int
    #: path of the control socket; empty: only try the code and the settings, and end
    socket: str = ""
    #: URL below the supervisor's ops server; empty: it has none
    url: str = ""
    #: processes that share the memory
    among: int = 1
    #: core of the Python threads; None: any
    core: int | None = None


def launch_of(text: str) -> Launch:
    """Read the option. :raises msgspec.MsgspecError: it is not from a supervisor."""
    return msgspec.json.decode(text, type=Launch)


@dataclass(frozen=True, slots=True)
class ProcessCommand:
    """How the processes of one supervisor are started. `arguments`: of `statehold`, without those of the supervisor."""

    arguments: Sequence[str]
    #: `service.instance` of the whole
    instance: str
    program: Sequence[str] = STATEHOLD

    def line(self, launch: Launch, number: int) -> list[str]:
        """Return the command of process `number`."""
        return [
            *self.program,
            *self.arguments,
            *("--set", f"service.instance={self.name(number)}"),
            *("--launch", msgspec.json.encode(launch).decode()),
        ]

    def name(self, number: int) -> str:
        return f"{self.instance}-{number}"


def environment_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process."""
    return {name: value for name, value in environment.items() if name not in _NOT_PASSED_ON}


def working_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory as it was entered: a release that is replaced behind a symbolic link is then found."""
    entered, here = Path(environment.get("PWD", "")), Path.cwd()
    try:
        return entered if entered.is_absolute() and entered.samefile(here) else here
    except OSError:
        return here


def cores() -> list[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def automatic(cpus: float) -> int:
    """Return the number of processes for this number of cores: a process takes one core and a half."""
    return max(1, -(-int(cpus * 2) // 3))


def available_cpus(cgroup: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Return the cores that this process may use, less if its cgroup has a quota (a container's limit)."""
    found = float(len(cores()))
    try:
        quota, period = cgroup.read_text(encoding="ascii").split()
        return found if quota == "max" else min(found, int(quota) / int(period))
    except (OSError, ValueError):
        return found
