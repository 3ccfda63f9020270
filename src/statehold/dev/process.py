"""Processes by identity: a pid alone may have passed to somebody else, a pid with its start time has not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that we started: its pid and the start time that the system tells of it."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Return the identity of a living process, None when there is none (a zombie counts as none)."""
        state, started = _proc_stat(pid) if _HAS_PROC else _ps_stat(pid)
        return None if state in ("", "Z", "X") else cls(pid, started)

    def is_alive(self) -> bool:
        """Tell whether this very process lives, not a later one with its pid."""
        return Identity.of(self.pid) == self

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; False when it is gone. Never hits another one."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_gone(self, timeout: float) -> bool:
        """Block until the process is gone, at most `timeout` seconds; False when it still lives."""
        deadline = time.monotonic() + timeout
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def command_of(pid: int) -> str:
    """Return a process's command, shortened in the middle: for a JVM the telling part is at the end."""
    if _HAS_PROC:  # noqa: SIM108
        told = _read(Path("/proc") / str(pid) / "cmdline").replace("\0", " ").strip()
    else:
        told = _ps(pid, "args=")
    return (told if len(told) <= 120 else f"{told[:24]} ... {told[-90:]}") or "unknown"


_HAS_PROC = Path("/proc/self/stat").exists()  # Linux; it needs no `ps`, which a minimal system lacks


def _proc_stat(pid: int) -> tuple[str, str]:
    """State letter and start time in clock ticks since boot; the name before them may hold any character."""
    fields = _read(Path("/proc") / str(pid) / "stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if fields else ("", "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _ps_stat(pid: int) -> tuple[str, str]:
    told = _ps(pid, "stat=", "lstart=").split()
    return (told[0][0], " ".join(told[1:])) if told else ("", "")


def _ps(pid: int, *columns: str) -> str:
    command = ["ps", *(part for column in columns for part in ("-o", column)), "-p", str(pid)]
    clean = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}  # the start time is compared as text
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean).stdout.strip()
