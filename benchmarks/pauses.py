"""Measures the pauses of live processing during a full snapshot of all keys."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks import kafka
from benchmarks.contender import Contender, Running, new_job
from benchmarks.keys import Writer
from benchmarks.report import Figures, console
from statehold.dev import Cluster

APP = Contender("statehold", "statehold", lambda: [sys.executable, "-m", "benchmarks.keys_app"])


@dataclass
class Pauses:
    """Milliseconds between two calls of the handler while records were waiting, commits included."""

    during: list[float]
    otherwise: list[float]
    slice_bound: float
    slices: int
    full_snapshots: int

    def report(self, figures: Figures) -> None:
        """Print and add the figures."""
        longest, usual = max(self.during, default=0.0), max(self.otherwise, default=0.0)
        figures.add("full_snapshots", self.full_snapshots, "count")
        figures.add("pause.during_full", longest, "ms")
        figures.add("pause.without_full", usual, "ms")
        figures.add("slice.at_most", self.slice_bound, "ms")
        console.print(
            f"{self.full_snapshots} full snapshots while live: longest pause {longest:.1f} ms (otherwise "
            f"{usual:.1f} ms, with commits); {self.slices:,} slices of at most {self.slice_bound:.0f} ms each"
        )


def measure(keys: int, passes: int = 3) -> Pauses:
    """Write every key `passes` times through statehold with default settings, and stop it cleanly."""
    with Cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        bootstrap = cluster.bootstrap_servers
        source, target = kafka.create(bootstrap, "puts"), kafka.create(bootstrap, "seen")
        writer = Writer(bootstrap, source, keys)
        for _ in range(passes):
            writer.pass_over()
        writer.look(1)
        file = Path(folder) / "pauses.json"
        running = Running(APP, new_job(bootstrap, 0, source, target, pauses=str(file)))
        came = kafka.Ends(bootstrap, target).wait(1, running.alive, seconds=300)
        running.end(patience=120)
        log = running.log.read_text(errors="replace")
        running.stop()
        if not came or not file.is_file():
            raise RuntimeError(f"no pauses were measured: {log[-300:]}")
        return _read(json.loads(file.read_text()), windows(log))


def windows(log: str) -> list[tuple[float, float]]:
    """Return the (start, end) of each full in the log, as seconds since 1970."""
    found, began = [], None
    for line in log.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if said.get("event") == "full_started":
            began = _moment(said)
        elif said.get("event") == "full_written" and began is not None:
            found.append((began, _moment(said)))
            began = None
    return found


def _moment(said: dict[str, str]) -> float:
    return datetime.fromisoformat(said["timestamp"].replace("Z", "+00:00")).timestamp()


def _read(measured: dict[str, list[list[float]]], full_snapshots: list[tuple[float, float]]) -> Pauses:
    during: list[float] = []
    otherwise: list[float] = []
    for at, gap in measured["gaps"]:
        (during if any(low <= at <= high for low, high in full_snapshots) else otherwise).append(gap * 1000)
    total = int(measured["slices"][-1][1]) if measured["slices"] else 0
    bound = next((bound for bound, count in measured["slices"] if count >= total and total), 0.0)
    return Pauses(during, otherwise, bound * 1000, total, len(full_snapshots))
