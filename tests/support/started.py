"""Find and kill processes by an entry of their environment, which children inherit; nothing where there is no /proc.

As a program it is the reaper of a test run: it waits for the end of its input, which is the end of the run, and kills
what has the entry in its argument.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path


def started_with(*entries: str) -> list[int]:
    """Return the processes whose environment has all these entries `NAME=value`, without this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or belongs to another user
            environment = (process / "environ").read_bytes().split(b"\0")
            if all(entry.encode() in environment for entry in entries):
                found.append(int(process.name))
    return [pid for pid in found if pid != os.getpid()]


def kill_started_with(*entries: str, seconds: float = 10.0) -> None:
    """Kill these processes, and those that they start meanwhile."""
    deadline = time.monotonic() + seconds
    while (pids := started_with(*entries)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(_number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # ends when the run has ended
    kill_started_with(sys.argv[1])
