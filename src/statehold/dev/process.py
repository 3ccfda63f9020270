"""Processes by identity, which is pid and start time, because the system gives a pid to another process later."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """A process: its pid and the start time that the system reports."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Return the identity of a living process, None when it has ended; a zombie has ended."""
        state, started = _proc_stat(pid) if _HAS_PROC else _ps_stat(pid)
        return None if state in ("", "Z", "X") else cls(pid, started)

    def is_alive(self) -> bool:
        """Return whether this process lives; a later one with its pid does not count."""
        return Identity.of(self.pid) == self

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this process, never to a later one with its pid; False when it has ended."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_gone(self, timeout: float) -> bool:
        """Block until the process has ended, at most `timeout` seconds; False when it still lives."""
        deadline = time.monotonic() + timeout
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def command_of(pid: int) -> str:
    """Return a process's command, shortened in the middle because a JVM's main class is at the end."""
    if _HAS_PROC:
        command = _read(Path("/proc") / str(pid) / "cmdline").replace("\0", " ").strip()
    else:
        command = _ps(pid, "args=")
    return (command if len(command) <= 120 else f"{command[:24]} ... {command[-90:]}") or "unknown"


class DeathGuard:
    """A helper process that kills `pid` once this process has ended in any way, and then removes `leftovers`.

    PR_SET_PDEATHSIG would be tied to the starting thread and does not exist on macOS.
    """

    def __init__(self, pid: int, leftovers: Path | None = None) -> None:
        sh = shutil.which("sh") or "/bin/sh"
        script = 'trap "" INT TERM HUP; read -r _; kill -9 "$1"; [ -z "$2" ] || { sleep 1; rm -rf "$2"; }'
        command = [sh, "-c", script, "statehold-guard", str(pid), str(leftovers or "")]
        # The helper reads a pipe whose other end the system closes when this process ends.
        self._helper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def cancel(self) -> None:
        """End the helper. Call it before the pid is reaped."""
        self._helper.kill()
        self._helper.communicate()


_HAS_PROC = Path("/proc/self/stat").exists()  # Linux; it needs no `ps`, which a minimal system lacks


def _proc_stat(pid: int) -> tuple[str, str]:
    """Return state letter and start time in clock ticks since boot; the name before them may hold any character."""
    fields = _read(Path("/proc") / str(pid) / "stat").rpartition(")")[2].split()
    return (fields[0], fields[19]) if fields else ("", "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _ps_stat(pid: int) -> tuple[str, str]:
    columns = _ps(pid, "stat=", "lstart=").split()
    return (columns[0][0], " ".join(columns[1:])) if columns else ("", "")


def _ps(pid: int, *columns: str) -> str:
    command = ["ps", *(part for column in columns for part in ("-o", column)), "-p", str(pid)]
    clean = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}  # the start time is compared as text
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean).stdout.strip()
