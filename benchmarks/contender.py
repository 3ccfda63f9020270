"""Who takes part in the comparison, and how one of them is run: a process of its own, measured from outside."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import environments

HERE = Path(__file__).parent
Command = Callable[[], list[str]]


@dataclass(frozen=True)
class Contender:
    """`command` makes the environment if need be and returns the command line, without the job file."""

    letter: str
    title: str
    command: Command
    options: dict[str, Any] = field(default_factory=dict)
    #: takes several partitions, and several processes of it share them
    spreads: bool = False
    #: takes part without being named
    usual: bool = True


def _python(environment: str, file: str) -> Command:
    return lambda: [environments.python_of(environment), str(HERE / "contenders" / file)]


def _streams() -> list[str]:
    path = environments.streams_class_path()
    return ["java", "-Xms512m", "-Xmx1500m", "-cp", path, "Totals"]


def _statehold() -> list[str]:
    return [sys.executable, "-m", "benchmarks.statehold_app"]


CONTENDERS = {
    "a": Contender("a", "statehold on_record", _statehold, {"batch": False, "origin": False}, spreads=True),
    "a_origin": Contender(
        "a_origin", "statehold on_record, output.origin on", _statehold, {"batch": False, "origin": True}, spreads=True
    ),
    "b": Contender("b", "statehold on_batch", _statehold, {"batch": True, "origin": False}, spreads=True),
    "b_origin": Contender(
        "b_origin", "statehold on_batch, output.origin on", _statehold, {"batch": True, "origin": True}, spreads=True
    ),
    "c": Contender("c", "confluent-kafka by hand, json", _python("loop", "loop_json.py")),
    "d": Contender("d", "the same, msgspec, tuned", _python("loop", "loop_msgspec.py")),
    "e": Contender("e", "quixstreams exactly-once", _python("quix", "quix.py")),
    "f": Contender("f", "Kafka Streams exactly_once_v2", _streams, {"caching": True}, spreads=True),
    "r": Contender("r", "statehold, two stages by a Rekey", _statehold, {"rekeyed": True}, spreads=True, usual=False),
    "rf": Contender(
        "rf",
        "Kafka Streams exactly_once_v2, repartition",
        _streams,
        {"caching": True, "rekeyed": True},
        spreads=True,
        usual=False,
    ),
    "re": Contender(
        "re", "quixstreams exactly-once, group_by", _python("quix", "quix.py"), {"rekeyed": True}, usual=False
    ),
    "g": Contender("g", "bytewax (at least once)", _python("bytewax", "bytewax_flow.py")),
}


@dataclass
class Usage:
    """What a finished process used."""

    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    exit_code: int = 0


class Running:
    """A contender at work. The job file, its state directory and its output live in a folder that `stop` removes."""

    def __init__(self, contender: Contender, job: dict[str, Any]) -> None:
        command = contender.command()
        self._folder = tempfile.TemporaryDirectory(prefix="statehold-bench-")
        folder = Path(self._folder.name)
        self.log = folder / "log"
        file = folder / "job.json"
        file.write_text(json.dumps({"state_dir": str(folder / "state"), **contender.options, **job}))
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, str(file)], cwd=HERE.parent, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        self._usage: Usage | None = None
        self._peak = 0.0
        atexit.register(self.stop, kill=True)  # whatever happens to the benchmark

    def alive(self) -> bool:
        """Return True if the process runs. Reap an ended process and keep its resource usage."""
        if self._usage is None:
            self._peak = max(self._peak, peak_mb(self.process.pid))
            pid, status, used = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self._keep(status, used)
        return self._usage is None

    def stop(self, *, kill: bool = False, patience: float = 20.0) -> Usage:
        """End it, kindly at first, and return what it used."""
        self.end(kill=kill, patience=patience)
        self._folder.cleanup()
        atexit.unregister(self.stop)
        assert self._usage is not None
        return self._usage

    def end(self, *, kill: bool = False, patience: float = 20.0) -> None:
        """End it as `stop` does; its log stays."""
        if self.alive():
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            deadline = time.monotonic() + patience
            while self.alive() and time.monotonic() < deadline:
                time.sleep(0.05)
            if self.alive():
                self.process.kill()
                _, status, used = os.wait4(self.process.pid, 0)
                self._keep(status, used)

    def said(self, lines: int = 4) -> str:
        """Return the end of its output, for a message about a failure."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _keep(self, status: int, used: Any) -> None:
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self._usage = Usage(used.ru_utime + used.ru_stime, self._peak, self.process.returncode)


def peak_mb(pid: int) -> float:
    """Return the most memory that a process has held so far; rusage would count its parent's before the exec."""
    return memory_mb(pid, "VmHWM")


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """Return the resident memory of a process, or another field of its status in kB; 0 if it is gone, or no /proc."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(field)), 0.0)


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, without its children; 0 without /proc or after its end."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def new_job(bootstrap: str, records: int, source: str, target: str, **more: Any) -> dict[str, Any]:
    """Return the job that every contender receives."""
    group = f"bench-{uuid.uuid4().hex[:8]}"
    job = {"bootstrap": bootstrap, "records": records, "input": source, "output": target, "group": group}
    return job | {"changelog": f"{group}-changelog", "commit_seconds": 0.1} | more
