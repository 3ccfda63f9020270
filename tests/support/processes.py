"""One service as a process of its own: start it, kill it, freeze it, read what it logs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GLANCE = 0.02

LogEvent = dict[str, Any]

#: the same service by `statehold run`
CLI = ("-m", "statehold.ops.cli.entry", "run", "tests.support.apps.served:service", "--set", "log.format=json")

#: after these a partition is not handled by this process
ENDINGS = frozenset({"drained", "aborted", "fenced_by_new_owner", "failed", "partition_closed"})


def await_true(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Look until `condition` holds; an AssertionError naming `what` when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(GLANCE)


class Process:
    """`tests.support.apps.run` with its own log; a restart appends to the log. Signals go to the pid it started."""

    command: tuple[str, ...] = ("-m", "tests.support.apps.run")

    def __init__(self, name: str, directory: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        if "PROBE_CLI" in environment:
            self.command = CLI
        self.log = directory / f"{name}.log"
        own = {"STATEHOLD_SERVICE__INSTANCE": name, "PYTHONUNBUFFERED": "1"}
        own["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
        self._environment = {**os.environ, **environment, **own}
        self._process: subprocess.Popen[bytes] | None = None
        self._begin = self._read = 0
        self._events: list[LogEvent] = []

    def start(self) -> Process:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        with self.log.open("ab") as log:
            self._begin = self._read = log.tell()
            self._events = []
            self._process = subprocess.Popen(
                [self._environment.get("PROBE_PYTHON", sys.executable), *self.command],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,  # it ends with this process, even if that is killed
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> str:
        return str(self._process.pid) if self._process is not None else ""

    @property
    def exit_code(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(30)
            if self._process.stdin is not None:
                self._process.stdin.close()

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM; the exit code of a clean end, an AssertionError when it does not end."""
        self.signal(signal.SIGTERM)
        return self.ended(seconds)

    def ended(self, seconds: float = 60.0) -> int:
        """Return the exit code after a stop signal: a second signal could come when it is no longer handled."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop in {seconds:.0f} s\n{self.tail()}") from None

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    # Its log since the last start

    def events(self, *names: str) -> list[LogEvent]:
        """What it has logged, or those events of it with one of the names."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            fresh = log.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(whole)
        self._events += [json.loads(line) for line in whole.splitlines() if line.startswith(b'{"')]
        return [event for event in self._events if not names or event["event"] in names]

    def live(self) -> set[int]:
        """The partitions that it handles now, as its log says."""
        live: set[int] = set()
        for event in self.events():
            if event["event"] in ("live", "outcome_resolved"):
                live.add(event["partition"])
            elif event["event"] in ENDINGS:
                live.discard(event["partition"])
        return live

    def await_live(self, *partitions: int, seconds: float = 60.0) -> Process:
        """Until exactly these partitions are live here."""
        return self.await_that(lambda: self.live() == set(partitions), f"live: {partitions}", seconds)

    def await_event(self, name: str, count: int = 1, seconds: float = 60.0) -> LogEvent:
        self.await_that(lambda: len(self.events(name)) >= count, f"{count} x {name}", seconds)
        return self.events(name)[count - 1]

    def await_that(self, condition: Callable[[], object], what: str, seconds: float = 60.0) -> Process:
        """Until it holds; an AssertionError with the end of the log when it does not, or when the process ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.running or condition(), f"{self.name} ended ({self.exit_code}) before {what}\n{self.tail()}"
            assert time.monotonic() < deadline, f"{self.name}: not within {seconds:.0f} s: {what}\n{self.tail()}"
            time.sleep(GLANCE)
        return self

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
