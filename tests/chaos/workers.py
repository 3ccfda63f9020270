"""The processes under test, of whatever target: start, kill, freeze, stop; their logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.chaos.history import History

ROOT = Path(__file__).resolve().parents[2]
LogEvent = dict[str, Any]


class Worker:
    """One process that is started again and again under the same name; only the harness's fault thread uses it."""

    def __init__(
        self, name: str, directory: Path, command: list[str], environment: Mapping[str, str], history: History
    ) -> None:
        self.name, self.log = name, directory / f"{name}.log"
        self._command, self._history = command, history
        own = {"STATEHOLD_SERVICE__INSTANCE": name, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
        self._environment = {**os.environ, **environment, **own}
        self._process: subprocess.Popen[bytes] | None = None
        #: of processes that ended by themselves
        self.exit_codes: list[int] = []
        self.starts = 0
        #: process id -> a moment before it began
        self.born: dict[int, float] = {}
        self.asked_to_end = False
        #: bytes of the log that `news` has returned
        self._read_to = 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """If it does not run."""
        if self.running:
            return
        self._reap()
        self.starts += 1
        self.asked_to_end = False
        with self.log.open("ab") as log:
            log.write(json.dumps({"event": "started_by_harness", "t": self._history.now()}).encode() + b"\n")
            log.flush()
            before = self._history.now()
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.born[self.pid] = before
        self._history.note("process", worker=self.name, what="start", pid=self.pid)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(30)

    def close(self) -> None:
        """Kill it and let go of it."""
        self.kill()
        self._reap()

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self.asked_to_end = self.asked_to_end or number in (signal.SIGKILL, signal.SIGTERM)
            self._history.note("process", worker=self.name, what=number.name, pid=self.pid)
            self._process.send_signal(number)

    def ask_stop(self) -> None:
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)

    def stop(self, seconds: float) -> int | None:
        """SIGTERM; the exit code, None when it had to be killed."""
        self.ask_stop()
        return self.wait(seconds)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code of a process that was signalled to end; kill it when that takes too long."""
        if self._process is None:
            return 0
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def ended_by_itself(self) -> int | None:
        """Return the exit code of a process that ended without a signal of the test."""
        if self._process is None or self.asked_to_end:
            return None
        return self._process.poll()

    def events(self, *names: str) -> list[LogEvent]:
        """Everything it logged over all its lives, or those events."""
        return _events(self.log.read_bytes(), names) if self.log.exists() else []

    def news(self, *names: str) -> list[LogEvent]:
        """As `events`, what has come since it was asked last."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as log:
            log.seek(self._read_to)
            whole, end, _ = log.read().rpartition(b"\n")
        self._read_to += len(whole) + len(end)
        return _events(whole, names)

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def usage(self) -> dict[str, int]:
        """Resident kilobytes, threads and open files; empty when it does not run."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
            files = len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError:
            return {}
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return {"rss": int(fields["VmRSS"].split()[0]), "threads": int(fields["Threads"]), "fds": files}

    def _reap(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            code = self.ended_by_itself()
            if code is not None:
                self.exit_codes.append(code)
            self._process.stdin.close()


def _events(log: bytes, names: tuple[str, ...]) -> list[LogEvent]:
    found = [json.loads(line) for line in log.splitlines() if line.startswith(b'{"') and line.endswith(b"}")]
    return [event for event in found if not names or event.get("event") in names]


def statehold_command(job: Path) -> list[str]:
    return [sys.executable, "-m", "tests.chaos.worker", str(job)]


def pause(seconds: float) -> None:
    """The schedule's own time; nothing is waited for."""
    time.sleep(max(0.0, seconds))
