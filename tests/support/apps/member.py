"""A process of a supervisor, without Kafka: `member.py run DIRECTORY ... --launch JSON`; files say how it behaves.

`release` has the name of the new code: `good` and others go live; `unloadable` cannot be loaded; `ends` ends with exit
code 1; `fails` fails its partition; `restores` does not go live. `exit` has the exit code after SIGTERM, and `slow`
makes it ignore SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families as exposition
from prometheus_client.registry import Collector

from statehold.ops.http.answers import HttpAnswer, HttpRequest, as_json
from statehold.ops.http.bounded_server import BoundedServer
from statehold.ops.remote import control_sockets
from statehold.ops.supervisor.launch import launch_of
from statehold.ops.supervisor.member import follow

METRICS = """# HELP statehold_ready 1 while every assigned partition is live.
# TYPE statehold_ready gauge
statehold_ready{service="echo"} 1.0
# HELP statehold_records_processed_total Input records.
# TYPE statehold_records_processed_total counter
statehold_records_processed_total{partition="%d",service="echo"} 7.0
# HELP statehold_commit_seconds Time.
# TYPE statehold_commit_seconds histogram
statehold_commit_seconds_bucket{le="0.1",partition="%d",service="echo"} 3.0
statehold_commit_seconds_bucket{le="+Inf",partition="%d",service="echo"} 4.0
statehold_commit_seconds_count{partition="%d",service="echo"} 4.0
statehold_commit_seconds_sum{partition="%d",service="echo"} 1.5
"""


class Families(Collector):
    """Shows what it was given."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


class Member:
    """Answers as a process does, of one partition that has its number."""

    def __init__(self, directory: Path, number: int) -> None:
        self.number, self.release = number, (directory / "release").read_text().strip()
        self.ended = threading.Event()
        self.code, self.directory = 0, directory

    def status(self) -> dict[str, Any]:
        phase = {"fails": "failed", "restores": "restoring"}.get(self.release, "live")
        row = {
            "partition": self.number,
            "phase": phase,
            "cause": None,
            "restore": None,
            "position": 1,
            "transaction": 1,
        }
        return {
            "name": "echo",
            "service": "echo",
            "input": "in",
            "inputs": ["in"],
            "pid": os.getpid(),
            "release": self.release,
            "running": True,
            "turned": 0.0,
            "ready": phase == "live",
            "idle": False,
            "waiting": None,
            "begun": True,
            "stopping": False,
            "stuck": [],
            "outage": None,
            "partitions": [{**row, "transaction": 1, "release": self.release}],
        }

    def answer(self, request: HttpRequest) -> HttpAnswer:
        match request.path:
            case "/metrics":
                families = exposition(METRICS % ((self.number,) * 5))
                registry = CollectorRegistry()
                registry.register(Families(list(families)))
                encode, kind = choose_encoder(request.headers.get("accept", ""))
                found = HttpAnswer(200, encode(registry), kind)
            case "/stacks":
                found = as_json({"stacks": {"main": []}})
            case "/retry":
                found = as_json({"retried": [self.number]})
            case "/console/data":
                found = as_json({"process": self.number})
            case "/state/totals/key" if self.number == 2:
                found = as_json({"key": "key", "value": 7, "partition": 2})
            case "/state/totals/key":
                found = as_json({"error": "elsewhere"}, 421)
            case _:
                found = as_json(self.status())
        if request.path == "/share":
            (self.directory / f"share-{self.number}").write_text(request.query["processes"])
        if request.path == "/drain":
            (self.directory / f"drained-{self.number}").touch()
            self.ended.set()
        return found

    def on_term(self, _number: int, _frame: FrameType | None) -> None:
        if not (self.directory / "slow").exists():
            self.code = int((self.directory / "exit").read_text()) if (self.directory / "exit").exists() else 0
            self.ended.set()


def main() -> int:
    launch = launch_of(sys.argv[-1])
    directory = Path(sys.argv[2])
    instance = next(each for each in sys.argv if each.startswith("service.instance="))
    member = Member(directory, int(instance.rpartition("-")[2]))
    signal.signal(signal.SIGTERM, member.on_term)
    follow(launch, 2.0)
    if not launch.socket:
        return 1 if member.release == "unloadable" else 0
    if member.release == "ends" or (directory / f"broken-{member.number}").exists():
        return int((directory / f"broken-{member.number}").read_text()) if member.release != "ends" else 1
    with (directory / "starts").open("a") as starts:
        starts.write(json.dumps({"number": member.number, "release": member.release, "among": launch.among}) + "\n")
    path = Path(launch.socket)
    path.unlink(missing_ok=True)
    server = BoundedServer(control_sockets.listen_at(path), member.answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not member.ended.wait(0.05):
        pass
    path.unlink(missing_ok=True)
    return member.code


if __name__ == "__main__":
    sys.exit(main())
