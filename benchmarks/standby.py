"""`script/bench standby`: time without answers at a takeover of 1,000,000 keys by a standby replica.

Each contender stores 1,000,000 keys in one partition; a second instance keeps a copy (`group.standbys = 1`,
`num.standby.replicas=1`). Under a steady load of puts and looks the owner is (1) stopped, and leaves the group, (2)
after it has come back and its copy is complete, the new owner is killed with SIGKILL. The silence runs from the last
answer before it to the first one after it, by the times at which the broker appended them; both have a session timeout
of 10 s and a heartbeat every 0.3 s. Every look must be answered once, and rightly.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks import environments, kafka
from benchmarks.contender import Contender, Running, new_job
from benchmarks.environments import Skipped
from benchmarks.keys import Writer, answers
from benchmarks.report import Figures, console, show
from statehold.dev import Cluster

SESSION = 10.0
LOOKS_PER_SECOND, PUTS_PER_SECOND = 100, 500
_SETTLE = 3.0
_PATIENCE = 180.0

STATEHOLD: dict[str, dict[str, Any]] = {
    "group": {"standbys": 1, "session_timeout": SESSION, "heartbeat_interval": 0.3},
    "snapshot": {"on_stop": False},
}
STREAMS = {
    "num.standby.replicas": "1",
    "session.timeout.ms": str(round(SESSION * 1000)),
    "heartbeat.interval.ms": "300",
}
STORES = {
    "statehold": Contender(
        "statehold", "statehold", lambda: [sys.executable, "-m", "benchmarks.keys_app"], {"settings": STATEHOLD}
    ),
    "cold": Contender(
        "cold",
        "statehold without standbys",
        lambda: [sys.executable, "-m", "benchmarks.keys_app"],
        {"settings": {**STATEHOLD, "group": {**STATEHOLD["group"], "standbys": 0}}},
    ),
    "streams": Contender(
        "streams",
        "Kafka Streams, in-memory store",
        lambda: ["java", "-Xms1g", "-Xmx2g", "-cp", environments.streams_class_path(), "Keys"],
        {"settings": STREAMS, "leave": True},
    ),
}


@dataclass
class Result:
    """Seconds of silence of one contender, each round; of a kill without the session timeout."""

    contender: Contender
    stopped: list[float] = field(default_factory=list)
    killed: list[float] = field(default_factory=list)
    skipped: str = ""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `standby`."""
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join(STORES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the moments of death")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when an answer was wrong."""
    console.print(f"{options.keys:,} keys, seed {options.seed}, load {os.getloadavg()[0]:.1f}")
    rng, right = random.Random(options.seed), True
    results = [Result(STORES[name]) for name in options.only.split(",")]
    for _ in range(options.rounds):
        for result in results:
            with Cluster() as cluster:
                right = _run(cluster.bootstrap_servers, result, options.keys, rng) and right
    _report(results)
    return 0 if right else 1


def _run(bootstrap: str, result: Result, keys: int, rng: random.Random) -> bool:
    source, target = kafka.create(bootstrap, "puts"), kafka.create(bootstrap, "seen")
    writer = Writer(bootstrap, source, keys)
    writer.pass_over()
    writer.look(1)
    job = new_job(bootstrap, 0, source, target)
    running: list[Running] = []
    try:
        running.append(Running(result.contender, job))
        assert kafka.Ends(bootstrap, target).wait(1, running[0].alive, 120 + keys / 10_000), running[0].said()
        with Load(writer, keys) as load:
            stopped = _lose(result.contender, job, running, signal.SIGTERM, rng)
            killed = _lose(result.contender, job, running, signal.SIGKILL, rng)
    except Skipped as reason:
        result.skipped = str(reason)
        return True
    finally:
        for each in running:
            each.stop(kill=True)
    return _judge(result, answers(bootstrap, target)[1:], load, stopped, killed)


def _lose(
    contender: Contender, job: dict[str, Any], running: list[Running], how: signal.Signals, rng: random.Random
) -> float:
    """A second instance comes and is ready, the first one goes; when."""
    running.append(Running(contender, {**job, "prepare": False}))
    deadline = time.monotonic() + _PATIENCE
    while not _ready(contender, running[-1].log):
        assert running[-1].alive(), running[-1].said()
        assert time.monotonic() < deadline, f"{contender.title}: no copy\n{running[-1].said()}"
        time.sleep(0.2)
    time.sleep(_SETTLE + rng.random())
    at = time.time()
    running[0].process.send_signal(how)
    time.sleep((SESSION if how == signal.SIGKILL else 0.0) + 3 * _SETTLE)
    running.pop(0).stop(kill=True)
    return at


def _ready(contender: Contender, log: Path) -> bool:
    text = log.read_text(errors="replace")
    if contender.letter == "cold":
        return '"subscribed"' in text
    if contender.letter == "statehold":
        return '"standby_ready"' in text
    progress = [json.loads(line) for line in text.splitlines() if line.startswith('{"standby"')]
    return bool(progress) and progress[-1]["standby"] + 100 >= progress[-1]["of"]


class Load:
    """Puts on one half of the keys, looks at the other, each key looked at once: `with Load(...)`."""

    def __init__(self, writer: Writer, keys: int) -> None:
        self._writer, self._keys = writer, keys
        self.looks: list[int] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(kafka.LONG_WAIT)
        self._writer.put(0)
        time.sleep(_SETTLE)

    def _run(self) -> None:
        at, half = 0, self._keys // 2
        while not self._ending.wait(1 / LOOKS_PER_SECOND):
            self.looks.append(half + at % half)
            self._writer.steady(
                self.looks[-1], [(at * 5 + i) % half for i in range(PUTS_PER_SECOND // LOOKS_PER_SECOND)]
            )
            at += 1


def _judge(result: Result, found: list[tuple[str, int, int]], load: Load, stopped: float, killed: float) -> bool:
    wanted = sorted(f"key-{index:08d}" for index in load.looks)
    wrong = sum(version != 0 for _, version, _ in found)
    if sorted(key for key, _, _ in found) != wanted or wrong:
        console.print(f"[red]{result.contender.title}: {len(found)} of {len(wanted)} answers, {wrong} wrong[/red]")
        return False
    times = sorted(moment / 1000 for _, _, moment in found)
    result.stopped.append(silence(times, stopped, 3 * _SETTLE))
    result.killed.append(silence(times, killed, SESSION + 3 * _SETTLE) - SESSION)
    console.print(
        f"{result.contender.title}: silent for {result.stopped[-1]:.2f} s at a stop, for the session timeout and "
        f"{result.killed[-1]:.2f} s at a kill; {len(found)} answers right"
    )
    return True


def silence(times: list[float], at: float, seconds: float) -> float:
    """Return the longest time without an answer around `at` and in the `seconds` after it."""
    near = [moment for moment in times if at - 1 < moment < at + seconds]
    return max(after - before for before, after in pairwise(near))


def _report(results: list[Result]) -> None:
    figures, rows = Figures("standby"), []
    for result in results:
        if not result.stopped:
            rows.append([result.contender.title, result.skipped or "wrong", ""])
            continue
        stopped, killed = statistics.median(result.stopped), statistics.median(result.killed)
        rows.append([result.contender.title, f"{stopped:.2f}", f"{killed:.2f}"])
        figures.add(f"{result.contender.letter}.stopped", stopped, "s", result.stopped)
        figures.add(f"{result.contender.letter}.killed", killed, "s", result.killed)
    show("silence of the output", ["", "clean stop s", "kill -9: session timeout + s"], rows)
    by = {result.contender.letter: result for result in results if result.stopped}
    if {"statehold", "streams"} <= by.keys():
        for name in ("stopped", "killed"):
            ours, theirs = (statistics.median(getattr(by[letter], name)) for letter in ("statehold", "streams"))
            figures.add(f"{name} statehold/streams", ours / theirs, "ratio")
            console.print(f"{name}: statehold / Kafka Streams = {ours / theirs:.2f}")
    figures.write()
