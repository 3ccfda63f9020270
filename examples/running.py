"""Starts and kills services as separate processes, and reads their logs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from statehold.dev.process import DeathGuard

ROOT = Path(__file__).resolve().parents[1]
GLANCE = 0.05
"""Seconds between two reads of a log or of a group's progress."""


STATEHOLD = (str(Path(sys.executable).with_name("statehold")),)


def statehold(servers: str, command: str) -> str:
    """Run a command of `statehold` to its end and return what it printed.

    RuntimeError with its words if it fails.
    """
    done = subprocess.run(
        [*STATEHOLD, *command.split()],
        cwd=ROOT,
        env=_environment(servers),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"statehold {command}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class LogEvent(NamedTuple):
    """One line of a service's log. `time` is in seconds since 1970; `partition` is -1 without one."""

    name: str
    time: float
    partition: int
    fields: Mapping[str, Any]


class ServiceProcess:
    """`statehold run TARGET` as a process that logs to `<name>.log` in `directory`; a restart appends to it.

    It has a session of its own: Ctrl-C reaches the program that started it, which then stops it cleanly. The process is
    killed when that program ends in another way.
    """

    def __init__(self, target: str, servers: str, directory: Path, name: str, *options: str) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._command = [*STATEHOLD, "run", target, *options]
        own = {"STATEHOLD_SERVICE__INSTANCE": name, "STATEHOLD_LOG__FORMAT": "json"}
        self._environment = _environment(servers) | own
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: DeathGuard | None = None
        self._begin = 0

    def start(self) -> None:
        """Start it; does not wait."""
        self._release()
        with self.log.open("ab") as log:
            self._begin = log.tell()
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        self._guard = DeathGuard(self._process.pid)

    def kill(self) -> None:
        """Send SIGKILL: no commit, no leave request. Returns after the end of the process."""
        self._signal(signal.SIGKILL)
        self._wait(10.0)

    def stop(self, timeout: float = 60.0) -> int:
        """Send SIGTERM and return the exit code. After `timeout` kill the process and raise TimeoutError."""
        self._signal(signal.SIGTERM)
        try:
            return self._wait(timeout)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise TimeoutError(f"{self.name} did not stop within {timeout:.0f} s") from error

    def is_running(self) -> bool:
        """Return whether the process lives."""
        if self._process is not None and self._process.poll() is None:
            return True
        self._release()
        return False

    def events(self) -> list[LogEvent]:
        """Return the log events since the last start, without other lines such as tracebacks."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as log:
            log.seek(self._begin)
            return list(_parse(log.read()))

    def live(self) -> set[int]:
        """Return the live partitions according to the log."""
        live: set[int] = set()
        for event in self.events():
            if event.name == "live":
                live.add(event.partition)
            elif event.name in ENDINGS:
                live.discard(event.partition)
        return live

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _wait(self, timeout: float) -> int:
        code = self._process.wait(timeout) if self._process is not None else 0
        self._release()
        return code

    def _release(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None


ENDINGS = frozenset({"drained", "aborted", "fenced_by_new_owner", "failed", "lost", "partition_closed"})


def wait_until(condition: Callable[[], bool], what: str, timeout: float, *processes: ServiceProcess) -> None:
    """Wait until `condition` holds. Raises TimeoutError with `what`, RuntimeError if a process ends before."""
    deadline = monotonic() + timeout
    while not condition():
        for process in processes:
            if not process.is_running():
                raise RuntimeError(f"{process.name} ended while waiting for {what}")
        if monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout:.0f} s")
        sleep(GLANCE)


def _environment(servers: str) -> dict[str, str]:
    return {**os.environ, "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers, "PYTHONPATH": str(ROOT)}


def _parse(raw: bytes) -> Iterator[LogEvent]:
    for line in raw.splitlines():
        if not line.startswith(b"{"):
            continue
        try:
            fields = json.loads(line)
        except ValueError:
            continue  # the last line of a killed process may be cut
        if "event" in fields and "timestamp" in fields:
            moment = datetime.fromisoformat(fields["timestamp"]).timestamp()
            yield LogEvent(fields["event"], moment, fields.get("partition", -1), fields)
