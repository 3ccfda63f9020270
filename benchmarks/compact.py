"""`script/bench compact`: Spark folds millions of delta entries into full snapshots, compared with a lower bound.

A service with 4 partitions writes a delta in every commit and no full snapshot, and stops. Then, one
after the other, each in a process of its own: Spark reads the topics and does nothing else; one Python process folds
them, as a restore does; `statehold compact` reads, folds, proves, writes and reads back. Seconds are those of the work:
the start of the interpreter and of the JVM is listed separately.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import kafka
from benchmarks.contender import HERE, Contender, Running, cpu_seconds, new_job, peak_mb
from benchmarks.keys import Writer
from benchmarks.report import Figures, console, show
from statehold.dev import Cluster

PARTITIONS = 4
#: of the time that Spark takes merely to read
REACH = 1.8
#: entries for each key
UPDATES = 10
_QUIET = {"snapshot": {"periodic_full": False, "on_stop": False, "full_growth": 0}}


@dataclass
class Memory:
    """Peaks in MB: of the program itself, which plans and judges; of the JVM, which in a local Spark is the driver's
    and the executors'; of the executors' Python; and of all at once."""

    program: float = 0.0
    jvm: float = 0.0
    workers: float = 0.0
    whole: float = 0.0

    def look(self, pid: int) -> None:
        """Take in what a process and all below it hold now."""
        held = {each: peak_mb(each) for each in _tree(pid)}
        java = sum(mb for each, mb in held.items() if _name(each) == "java")
        program, whole = held.get(pid, 0.0), sum(held.values())
        self.program, self.jvm = max(self.program, program), max(self.jvm, java)
        self.workers, self.whole = max(self.workers, whole - java - program), max(self.whole, whole)

    def __str__(self) -> str:
        return f"{self.program:,.0f} + {self.jvm:,.0f} + {self.workers:,.0f}"


@dataclass
class Took:
    """One process: seconds of its work as it says itself, seconds in all, processor seconds of it and its children,
    and the most memory that each part of it held, in MB."""

    work: float
    whole: float
    cpu: float
    memory: Memory
    said: Any


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `compact`."""
    parser.add_argument("--millions", default="5,20", help="of delta entries, each in a run of its own")
    parser.add_argument("--memory", default="2g", help="heap of Spark")
    parser.add_argument("--only", default="read,python,compact")
    parser.add_argument("--changed", type=float, help="instead: percent of the keys that change between compactions")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when a fold was not proven."""
    if options.changed is not None:
        return _changes(options)
    rows: dict[float, dict[str, Took]] = {}
    sizes: dict[float, tuple[int, int]] = {}
    for millions in map(float, options.millions.split(",")):
        with Cluster() as cluster:
            job, size = fill(cluster.bootstrap_servers, int(millions * 1e6), UPDATES)
            sizes[millions] = int(millions * 1e6), size
            rows[millions] = {
                name: _measure(name, {**job, "memory": options.memory}) for name in options.only.split(",")
            }
    _report(rows, sizes)
    return 0 if all(_proven(each.get("compact")) for each in rows.values()) else 1


def fill(bootstrap: str, entries: int, updates: int) -> tuple[dict[str, Any], int]:
    """Write the topics of a service whose keys have `updates` updates each. Return the contenders' job, and the bytes
    of the changelog."""
    source = kafka.create(bootstrap, "puts", PARTITIONS)
    target = kafka.create(bootstrap, "seen", PARTITIONS)
    writer = Writer(bootstrap, source, entries // updates, PARTITIONS, varied=True)
    job = new_job(bootstrap, entries, source, target, settings=_QUIET)
    began = time.monotonic()
    _handle(bootstrap, job, writer, entries, entries)
    size = kafka.size_of(bootstrap, f"{job['group']}.{source}.changelog", PARTITIONS)
    console.print(f"{entries:,} entries, {size / 1e6:,.1f} MB, written in {time.monotonic() - began:.0f} s")
    return job, size


def _handle(bootstrap: str, job: dict[str, Any], writer: Writer, puts: int, total: int) -> None:
    """Let the service handle further puts, `total` since the start, and stop."""
    began = time.monotonic()
    service = Running(Contender("h", "statehold", lambda: [sys.executable, "-m", "benchmarks.keys_app"]), job)
    writer.put(puts)
    committed = kafka.Committed(bootstrap, job["group"], job["input"], PARTITIONS)
    while committed.total() < total:
        if not service.alive() or time.monotonic() - began > 600 + puts / 10_000:
            raise RuntimeError(f"the service did not get through:\n{service.said()}")
        time.sleep(0.2)
    service.stop(patience=60)


def _changes(options: argparse.Namespace) -> int:
    """Compact a state of as many keys as entries, then after changes, with and without `snapshot.share`."""
    proven = True
    for millions in map(float, options.millions.split(",")):
        with Cluster() as cluster:
            servers, keys, lines = cluster.bootstrap_servers, int(millions * 1e6), []
            job, _ = fill(servers, keys, 1)
            job["memory"] = options.memory
            writer, total = Writer(servers, job["input"], keys, PARTITIONS, varied=True), keys
            for title, percent, share in (
                ("the first, whole", 0.0, 10),
                ("unchanged", 0.0, 10),
                (f"{options.changed:g} % changed", options.changed, 10),
                (f"{options.changed:g} % changed, again", options.changed, 10),
                (f"{options.changed:g} % changed, whole", options.changed, 0),
            ):
                if percent:
                    puts = int(keys * percent / 100)
                    total += puts
                    _handle(servers, job, writer, puts, total)
                took = _measure("compact", {**job, "of_compaction": {"snapshot": {"share": share}}})
                written = sum(each["bytes_written"] or 0 for each in took.said["outcomes"])
                proven = proven and _proven(took)
                lines.append([title, f"{written:,}", *(f"{each:.1f}" for each in (took.work, took.whole, took.cpu))])
            show(f"{millions:g} million keys", ["", "bytes", "s of work", "s in all", "processor s"], lines)
    return 0 if proven else 1


def _measure(name: str, job: dict[str, Any]) -> Took:
    """Run one contender; `read` and `python` print {"seconds": ...}, compact its outcomes."""
    with tempfile.TemporaryDirectory(prefix="statehold-bench-") as folder:
        file, out, err = (Path(folder) / each for each in ("job.json", "out", "err"))
        file.write_text(json.dumps(job))
        began = time.monotonic()
        with out.open("w") as output, err.open("w") as complaints:
            process = subprocess.Popen(_command(name, file), cwd=HERE.parent, stdout=output, stderr=complaints)
            memory, used = Memory(), dict[int, float]()
            while process.poll() is None:
                memory.look(process.pid)
                used |= {each: found for each in _tree(process.pid) if (found := cpu_seconds(each))}
                time.sleep(0.1)
        whole, cpu = time.monotonic() - began, sum(used.values())
        if process.returncode != 0:
            raise RuntimeError(f"{name} ended with {process.returncode}:\n{err.read_text()[-2000:]}{out.read_text()}")
        said = json.loads(out.read_text().splitlines()[-1])  # Spark may talk, too
    work = whole - said["started"] if "started" in said else whole
    counted = ", ".join(f"{key} {value:,}" for key, value in said.items() if isinstance(value, int))
    console.print(f"{name}: {work:.1f} s of work, {whole:.1f} s in all, {cpu:.1f} processor s, {memory} MB, {counted}")
    return Took(work, whole, cpu, memory, said)


def _command(name: str, file: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.compact_run", name, str(file)]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # gone meanwhile
        return ""


def _tree(pid: int) -> Sequence[int]:
    """A process and all below it."""
    found, rest = [], [pid]
    while rest:
        each = rest.pop()
        found.append(each)
        try:
            for children in Path(f"/proc/{each}/task").glob("*/children"):
                rest += map(int, children.read_text().split())
        except OSError:  # gone meanwhile
            continue
    return found


def _proven(took: Took | None) -> bool:
    return took is None or all(each["proven"] for each in took.said["outcomes"])


def _report(rows: dict[float, dict[str, Took]], sizes: dict[float, tuple[int, int]]) -> None:
    figures, lines = Figures("compact"), []
    titles = {"read": "Spark, merely reading", "python": "one Python process", "compact": "statehold compact"}
    for millions, each in rows.items():
        entries, size = sizes[millions]
        for name, took in each.items():
            rate, flow = entries / took.work, size / 1e6 / took.work
            seconds = [f"{each:.1f}" for each in (took.work, took.whole, took.cpu)]
            rates = [f"{rate:,.0f}", f"{flow:,.1f}"]
            lines.append([f"{titles[name]}, {millions:g} million", *rates, *seconds, str(took.memory)])
            figures.add(f"{name}.{millions:g}m.entries", rate, "entries/s")
            figures.add(f"{name}.{millions:g}m.seconds", took.work, "s")
            figures.add(f"{name}.{millions:g}m.whole", took.whole, "s")
            figures.add(f"{name}.{millions:g}m.bytes", flow, "MB/s")
            figures.add(f"{name}.{millions:g}m.processor", took.cpu, "s")
            for part in ("program", "jvm", "workers", "whole"):
                figures.add(f"{name}.{millions:g}m.memory.{part}", getattr(took.memory, part), "MB")
        figures.add(f"{millions:g}m.megabytes", size / 1e6, "MB")
        if "read" in each and "compact" in each:
            figures.add(f"{millions:g}m compact/read", each["compact"].work / each["read"].work, "ratio")
    heads = ["", "entries/s", "MB/s", "s of work", "s in all", "processor s", "MB: program + JVM + Python workers"]
    show("folding deltas", heads, lines)
    for figure in figures.values:
        if figure["unit"] == "ratio":
            console.print(f"{figure['name']} = {figure['value']} (at most {REACH})")
    figures.write()
