"""Processes by identity: a pid alone may have passed to somebody else, a pid with its start time has not."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that we started: its pid and the start time that the system tells of it."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Return the identity of a living process, None when there is none (a zombie counts as none)."""
        told = _ps(pid, "lstart=", "stat=")
        if not told or told.split()[-1].startswith("Z"):
            return None
        return cls(pid, " ".join(told.split()[:-1]))

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
    """Return a process's command in at most 80 characters."""
    told = _ps(pid, "args=") or "gone"
    return told if len(told) <= 80 else told[:77] + "..."


def _ps(pid: int, *columns: str) -> str:
    command = ["ps", *(part for column in columns for part in ("-o", column)), "-p", str(pid)]
    clean = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}  # the start time is compared as text
    return subprocess.run(command, capture_output=True, text=True, check=False, env=clean).stdout.strip()
