"""The part of `script/bench calls` against Restate: one scored call of 50 ms for each record, a total per account.

Both take the records from Kafka, call the same scorer in a process of its own, one call of an account at a time, and
are killed with SIGKILL in the middle and started again at once. The scorer's log is the oracle: it says which calls
were repeated and what each total must be.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import msgspec
from confluent_kafka import Producer

from benchmarks import kafka
from benchmarks.calls_app import Payment
from benchmarks.environments import Skipped
from benchmarks.report import Figures, console, show
from benchmarks.restate import Restate, Setup, processor, running
from benchmarks.scored_app import service
from benchmarks.scorer import Log, scoring
from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
from statehold.config import load
from statehold.dev.ports import free_ports

ROOT: Final = Path(__file__).resolve().parents[1]
PARTITIONS: Final = 2
ACCOUNTS: Final = 2000
PATIENCE: Final = 400.0


class Contender(Protocol):
    """A service that is at work."""

    def totals(self) -> dict[str, int]:
        """Return the total of each account."""
        ...

    def pids(self) -> list[int]: ...

    def kill(self) -> None:
        """Kill it and start it again."""
        ...


@dataclass
class Run:
    """What one run was like."""

    rate: float
    processor: float
    repeated: int = 0
    pause: float = 0.0
    good: bool = True


@dataclass
class Runs:
    """Those of a contender, without and with a kill."""

    whole: list[Run] = field(default_factory=list)
    killed: list[Run] = field(default_factory=list)


def against_restate(servers: str, options: argparse.Namespace, figures: Figures) -> bool:
    """Measure both; return whether every total was right."""
    found = {"statehold": Runs(), "Restate": Runs()}
    counts = {"statehold": options.scored, "Restate": max(ACCOUNTS, options.scored // 5)}
    for name, count in counts.items():
        _fill(servers, f"scored-{name}", count)
    for number in range(options.rounds):
        for name, runs in found.items():
            for kill, kept in ((False, runs.whole), (True, runs.killed)):
                try:
                    with tempfile.TemporaryDirectory(prefix="statehold-scored-") as folder:
                        kept.append(_run(servers, name, counts[name], number, Path(folder), kill=kill))
                except Skipped as reason:
                    console.print(f"{name} skipped: {reason}")
                    continue
                run = kept[-1]
                console.print(
                    f"{name}{' killed' if kill else ''}: {run.rate:,.0f} records/s, {run.processor:.2f} s per 1,000, "
                    f"{run.repeated} calls repeated, totals {'right' if run.good else '[red]WRONG[/red]'}"
                )
    _report({name: runs for name, runs in found.items() if runs.whole}, figures)
    return all(run.good for runs in found.values() for run in (*runs.whole, *runs.killed))


def _report(found: dict[str, Runs], figures: Figures) -> None:
    rows = []
    rates = {name: statistics.median(run.rate for run in runs.whole) for name, runs in found.items()}
    for name, runs in found.items():
        spent = statistics.median(run.processor for run in runs.whole)
        repeated = statistics.median(run.repeated for run in runs.killed)
        pause = statistics.median(run.pause for run in runs.killed)
        figures.add(f"scored.{name}", rates[name], "records/s", [run.rate for run in runs.whole])
        figures.add(f"scored.{name}.cpu", spent, "s per 1,000 records", [run.processor for run in runs.whole])
        figures.add(f"scored.{name}.repeated", repeated, "calls", [run.repeated for run in runs.killed])
        figures.add(f"scored.{name}.pause", pause, "s", [run.pause for run in runs.killed])
        rows.append([name, f"{rates[name]:,.0f}", f"{spent:.2f}", f"{repeated:.0f}", f"{pause:.1f}"])
    show(
        "a scored call for each record",
        ["", "records/s", "CPU s per 1,000", "repeated after a kill", "s without an answer"],
        rows,
    )
    if len(rates) > 1:
        figures.add("scored.statehold/Restate", rates["statehold"] / rates["Restate"], "ratio")
        console.print(
            f"statehold / Restate: {rates['statehold'] / rates['Restate']:.1f}; load {os.getloadavg()[0]:.1f}"
        )


def _fill(servers: str, topic: str, count: int) -> None:
    kafka.create(servers, topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "partitioner": "murmur2_random"})
    for each in range(count):
        payment = Payment(each, f"a{each % ACCOUNTS}", each % 997)
        producer.produce(topic, msgspec.json.encode(payment), payment.account)
    assert producer.flush(PATIENCE) == 0


def _run(servers: str, name: str, count: int, number: int, folder: Path, *, kill: bool) -> Run:
    (port,), label = free_ports(1), f"b{number}{'k' if kill else 'w'}."
    start = _restate if name == "Restate" else _statehold
    with scoring(port, folder / "scores") as log, start(servers, port, f"scored-{name}", label) as contender:
        _await(lambda: _asked(log) > 0)
        began, used = time.monotonic(), processor(contender.pids())
        pause = 0.0
        if kill:
            _await(lambda: _answered(log) >= count // 2)
            stopped = time.monotonic()
            contender.kill()
            time.sleep(0.2)  # what it had asked is on its way
            before = _asked(log)
            _await(lambda: _asked(log) > before)
            pause = time.monotonic() - stopped
        _await(lambda: _answered(log) == count)
        truth = _truth(log)
        good = _becomes(lambda: contender.totals() == truth)
        seconds = time.monotonic() - began
        spent = processor(contender.pids()) - used
        time.sleep(0.5)  # for a late call
        log.update()
        return Run(count / seconds, spent / count * 1000, log.repeated, pause, good)


def _answered(log: Log) -> int:
    log.update()
    return len(log.points)


def _asked(log: Log) -> int:
    log.update()
    return sum(log.asked.values())


def _truth(log: Log) -> dict[str, int]:
    totals: dict[str, int] = {}
    for payment, points in log.points.items():
        account = f"a{payment % ACCOUNTS}"
        totals[account] = totals.get(account, 0) + points
    return totals


def _await(condition: Callable[[], bool]) -> None:
    assert _becomes(condition), "nothing has come for too long"


def _becomes(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


class _Statehold:
    """The service in a process of its own, whose totals are in its committed outputs."""

    def __init__(self, servers: str, port: int, topic: str, label: str) -> None:
        self._servers = servers
        self._environment = os.environ | {
            "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers,
            "STATEHOLD_SERVICE__NAMESPACE": label,
            "STATEHOLD_CALLS__PENDING": "5000",
            "STATEHOLD_CALLS__IN_FLIGHT": "2000",
            "STATEHOLD_GROUP__INSTANCE_ID": "one",
            "SCORER_PORT": str(port),
            "BENCH_INPUT": topic,
            "BENCH_OUTPUT": f"{label}totals",
            "PYTHONPATH": str(ROOT),
        }
        settings = load(env=self._environment)
        found = ServiceTopics(settings, Names(service.name, topic, label), []).create(
            "beginning", partitions=PARTITIONS
        )
        assert all(each.good for each in found), found
        self._output = kafka.create(servers, f"{label}totals")
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "benchmarks.scored_app"]
        self._process = subprocess.Popen(command, cwd=ROOT, env=self._environment, stdout=subprocess.DEVNULL)

    def totals(self) -> dict[str, int]:
        totals = {}
        for message in kafka.records_of(self._servers, self._output):
            _, account, total = (message.value() or b"").decode().split()
            totals[account] = int(total)
        return totals

    def pids(self) -> list[int]:
        return [self._process.pid]

    def kill(self) -> None:
        self.end()
        self._start()

    def end(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextmanager
def _statehold(servers: str, port: int, topic: str, label: str) -> Iterator[Contender]:
    contender = _Statehold(servers, port, topic, label)
    try:
        yield contender
    finally:
        contender.end()


class _Restate:
    def __init__(self, restate: Restate) -> None:
        self._restate = restate
        self.totals, self.pids = restate.totals, restate.pids

    def kill(self) -> None:
        self._restate.kill_service()
        self._restate.start_service()


@contextmanager
def _restate(servers: str, port: int, topic: str, _: str) -> Iterator[Contender]:
    with running(Setup(), servers, port) as restate:
        restate.subscribe(topic, "scored")
        yield _Restate(restate)
