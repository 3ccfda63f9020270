"""`script/bench rehearse | rebuild | shadow`: what the tools for the next release cost, on topics of a real service.

`rehearse` and `rebuild`: a service handles all records and stops. Then `snapshot verify --replay`, which is the
measure, and the tool handle the same records with the same code, as commands of their own, in turns; with `--spark`,
the tool also under Spark. The time is that of the whole command, its start included, so measure with a million records
or more. A run counts only if the command found everything equal.

`shadow`: a service gets records at a steady rate, alone and with `statehold shadow` next to it, in turns. Latency is
from sending a record to its readable output, processor time that of the service's process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import kafka, load
from benchmarks.contender import HERE, cpu_seconds
from benchmarks.report import Figures, console, show
from statehold.dev import Cluster

TARGET: Final = "benchmarks.next_release_app:service"
GROUP, SOURCE, OUTPUT = "bench-release", "trades", "running"
WARM_SECONDS: Final = 5
_PATIENCE: Final = 120.0

#: what handles the same records in one process -> the options of its command
TOOLS: Final = {
    "verify": ("snapshot", "verify", TARGET, "--replay", "--from", "n:0", "--json"),
    "rehearse": ("rehearse", TARGET, "--from", "n:0", "--json"),
    "rebuild": ("rebuild", TARGET, "--from", "beginning", "--why", "a benchmark", "--json"),
}
TITLES: Final = {"verify": "snapshot verify --replay", "rehearse": "rehearse", "rebuild": "rebuild, without --yes"}
RUN: Final = ("run", TARGET, "-s", "ops.listen=off")
SHADOW: Final = ("shadow", TARGET, "--json", "--every", "1s", "-s", "ops.listen=off")
#: least rate of a tool, as a part of that of `verify`
GOALS: Final = {"rehearse": 0.9, "rebuild": 1.0}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rehearse`, `rebuild` and `shadow`."""
    parser.add_argument("--rounds", type=int, default=3)
    if parser.prog.endswith("shadow"):
        parser.add_argument("--rate", type=int, default=5_000, help="records per second")
        parser.add_argument("--seconds", type=int, default=20, help="of each run, after 5 s")
        return
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--spark", default="", metavar="MASTER", help="also under Spark, such as local[2]")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 if a command failed or found a difference."""
    console.print(f"load {os.getloadavg()[0]:.1f}")
    return _shadow(options) if options.name == "shadow" else _tool(options, options.name)


# rehearse, rebuild


@dataclass
class Runs:
    """Seconds of a command, each round, and its processor time without Spark's JVM."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def _tool(options: argparse.Namespace, name: str) -> int:
    commands = {each: TOOLS[each] for each in ("verify", name)}
    if options.spark:
        commands["spark"] = (*TOOLS[name], "--spark-master", options.spark)
    runs = {each: Runs() for each in commands}
    with Cluster() as cluster:
        bootstrap = cluster.bootstrap_servers
        _prepare(bootstrap, options.partitions)
        load.fill(bootstrap, SOURCE, options.records)
        with _running(bootstrap, *RUN) as service:
            done = kafka.Committed(bootstrap, GROUP, SOURCE, options.partitions)
            _await(service, lambda: done.total() >= options.records, 60 + options.records / 5_000)
        for number in range(options.rounds):
            for each in list(commands) if number % 2 == 0 else reversed(commands):
                _measure(bootstrap, each, commands[each], runs[each], options.records)
    return _report_tool(name, runs, options)


def _measure(bootstrap: str, name: str, command: tuple[str, ...], runs: Runs, records: int) -> None:
    """Run one command. :raises RuntimeError: it failed, or handled other records, or found a difference."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as said:
        began = time.monotonic()
        process = _start(bootstrap, command, out, said)
        _, status, used = os.wait4(process.pid, 0)
        seconds, process.returncode = time.monotonic() - began, os.waitstatus_to_exitcode(status)
        out.seek(0)
        said.seek(0)
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said.read()[-1000:]}")
        handled, wrong = _found(json.load(out))
    if handled != records or wrong:
        raise RuntimeError(f"{' '.join(command)} handled {handled} of {records} records, {wrong} of them differ")
    runs.seconds.append(seconds)
    runs.cpu.append(used.ru_utime + used.ru_stime)
    console.print(f"{name}: {seconds:.1f} s, {records / seconds:,.0f} records/s")


def _found(document: Any) -> tuple[int, int]:
    """Return the number of handled records and of differences in the document of a command."""
    if isinstance(document, list):
        replays = [each["replay"] for each in document]
        return sum(each["records"] for each in replays), sum(len(each["differences"]) for each in replays)
    partitions = document["partitions"]
    counts = ("changed", "missing", "added")
    differing = sum(one.get(count, 0) for each in partitions for one in each["compared"] for count in counts)
    return sum(each["records"] for each in partitions), differing


def _report_tool(name: str, runs: dict[str, Runs], options: argparse.Namespace) -> int:
    figures, rows = Figures(name), []
    titles = TITLES | {"spark": f"{name}, {options.spark}"}
    rates = {each: [options.records / seconds for seconds in run.seconds] for each, run in runs.items()}
    for each, run in runs.items():
        cpu = [seconds * 1e6 / options.records for seconds in run.cpu]
        shown = "" if each == "spark" else f"{statistics.median(cpu):.1f}"
        ratio = _ratios(rates[each], rates["verify"])
        rows.append([titles[each], f"{statistics.median(rates[each]):,.0f}", f"{statistics.median(ratio):.2f}", shown])
        figures.add(f"{each}.rate", statistics.median(rates[each]), "records/s", rates[each])
        if each != "spark":
            figures.add(f"{each}.cpu", statistics.median(cpu), "s/million records", cpu)
    heads = ["", "records/s", "of verify --replay", "CPU s per million"]
    show(f"{options.records:,} records in {options.partitions} partitions, whole commands", heads, rows)
    ratio = _ratios(rates[name], rates["verify"])
    figures.add(f"{name}/verify", statistics.median(ratio), "ratio", ratio)
    console.print(f"{name} / verify --replay = {statistics.median(ratio):.2f} (at least {GOALS[name]})")
    if options.spark:
        spread = _ratios(rates["spark"], rates[name])
        figures.add(f"{options.spark}/one process", statistics.median(spread), "ratio", spread)
        console.print(f"{options.spark} / one process = {statistics.median(spread):.2f}")
    figures.write()
    return 0


def _ratios(rates: list[float], others: list[float]) -> list[float]:
    """Return the ratio of each round, because the speed of a machine varies between rounds."""
    return [rate / other for rate, other in zip(rates, others, strict=True)]


# shadow


@dataclass
class Lives:
    """Milliseconds of a service's answers, and its processor time per million records, each round."""

    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def _shadow(options: argparse.Namespace) -> int:
    alone, shadowed = Lives(), Lives()
    for number in range(options.rounds):
        turns = [(alone, False), (shadowed, True)]
        for lives, shadow in turns if number % 2 == 0 else reversed(turns):
            with Cluster() as cluster:  # a new one, because the topics grow
                _live(cluster.bootstrap_servers, lives, options.rate, options.seconds, shadow=shadow)
    figures, rows = Figures("shadow"), []
    for title, lives in (("alone", alone), ("with a shadow", shadowed)):
        medians = {each: statistics.median(getattr(lives, each)) for each in ("p50", "p99", "cpu")}
        rows.append([title, f"{medians['p50']:.1f}", f"{medians['p99']:.1f}", f"{medians['cpu']:.1f}"])
        for each, value in medians.items():
            unit = "s/million records" if each == "cpu" else "ms"
            figures.add(f"{title.replace(' ', '_')}.{each}", value, unit, getattr(lives, each))
    show(f"a service at {options.rate:,} records/s", ["", "p50 ms", "p99 ms", "CPU s per million"], rows)
    for each in ("p50", "p99", "cpu"):
        ratio = _ratios(getattr(shadowed, each), getattr(alone, each))
        figures.add(f"{each}, with a shadow/alone", statistics.median(ratio), "ratio", ratio)
        console.print(f"{each}: with a shadow / alone = {statistics.median(ratio):.2f}")
    figures.write()
    return 0


def _live(bootstrap: str, lives: Lives, rate: int, seconds: int, *, shadow: bool) -> None:
    """Measure one life. :raises RuntimeError: an output did not come, or the shadow found a difference."""
    count = rate * (WARM_SECONDS + seconds)
    _prepare(bootstrap, 1)
    load.fill(bootstrap, SOURCE, 1)  # its output shows that the service is live
    with _running(bootstrap, *RUN) as service, ExitStack() as opened:
        _await(service, lambda: kafka.Ends(bootstrap, OUTPUT).stable() > 0, _PATIENCE)
        follower = _Follower(bootstrap, opened) if shadow else None
        before = cpu_seconds(service.pid)
        job = {"bootstrap": bootstrap, "input": SOURCE, "output": OUTPUT, "rate": rate, "count": count}
        paced = [sys.executable, "-m", "benchmarks.pace", json.dumps(job)]
        done = subprocess.run(paced, cwd=HERE.parent, capture_output=True, text=True, check=False)
        used = cpu_seconds(service.pid) - before
        if follower is not None:
            follower.require_equal(count)
    if done.returncode != 0:
        raise RuntimeError(f"the records at {rate}/s: {done.stderr.strip()[-300:]}")
    delays = sorted(json.loads(done.stdout))
    lives.p50.append(statistics.median(delays))
    lives.p99.append(delays[int(len(delays) * 0.99)])
    lives.cpu.append(used * 1e6 / count)
    title = "with a shadow" if shadow else "alone"
    console.print(f"{title}: p50 {lives.p50[-1]:.1f} ms, p99 {lives.p99[-1]:.1f} ms, CPU {lives.cpu[-1]:.1f} s/million")


class _Follower:
    """A shadow that follows. It ends with the stack."""

    def __init__(self, bootstrap: str, opened: ExitStack) -> None:
        self._report = Path(opened.enter_context(tempfile.TemporaryDirectory())) / "report"
        self._process = opened.enter_context(_running(bootstrap, *SHADOW, out=self._report))
        _await(self._process, lambda: "following" in self._report.read_text(), _PATIENCE)

    def require_equal(self, count: int) -> None:
        """Wait until it has compared `count` records. :raises RuntimeError: it found a difference."""
        _await(self._process, lambda: _found(self._newest())[0] >= count, _PATIENCE)
        verdict, (_, wrong) = self._newest()["verdict"], _found(self._newest())
        if verdict != "equal" or wrong:
            raise RuntimeError(f"the shadow says {verdict}, {wrong} results differ")

    def _newest(self) -> Any:
        """Return its newest whole report."""
        return json.loads(self._report.read_text().rpartition("\n")[0].rpartition("\n")[2])


# Commands


def _prepare(bootstrap: str, partitions: int) -> None:
    for name in (SOURCE, OUTPUT):
        kafka.create(bootstrap, name, partitions)
    command = ("topics", "create", TARGET, "--start-at", "beginning")
    with tempfile.TemporaryFile("w+") as out:
        process = _start(bootstrap, command, out, out)
        if process.wait(_PATIENCE) != 0:
            out.seek(0)
            raise RuntimeError(f"topics create: {out.read()[-1000:]}")


def _start(bootstrap: str, command: tuple[str, ...], out: Any, said: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "statehold", *command],
        cwd=HERE.parent,
        env={**os.environ, "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": bootstrap},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=said,
    )


@contextmanager
def _running(bootstrap: str, *command: str, out: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends, and stop it by SIGTERM."""
    with tempfile.TemporaryFile() as log, (out or Path(os.devnull)).open("w") as written:
        process = _start(bootstrap, command, written if out else log, log)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(process: subprocess.Popen[bytes], condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition. :raises RuntimeError: the process ended, or the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"it ended or took longer than {seconds:.0f} s: {process.args!s:.200}")
        time.sleep(0.2)
