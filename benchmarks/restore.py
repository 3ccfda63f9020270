"""`script/bench restore`: the time from start to live after a kill at a random moment.

Each contender stores 1,000,000 keys of about 100 bytes under default settings (1) once, (2) ten times each, continues
at a low rate, and is killed with SIGKILL at a random moment. After the broker has noticed (the group is empty), queries
are written to the input. The contender starts without local state, and the time runs from the start of its
process until the first answer is appended to the output. Every answer is compared with the written value.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import AdminClient

from benchmarks import environments, kafka, pauses
from benchmarks.contender import HERE, Contender, Running, new_job
from benchmarks.environments import Skipped
from benchmarks.keys import Writer, answers
from benchmarks.report import Figures, console, show
from statehold.dev import Cluster

LOOKS = 500
REACH = {1: 0.6, 10: 0.3}


def _streams() -> list[str]:
    return ["java", "-Xms1g", "-Xmx4g", "-cp", environments.streams_class_path(), "Keys"]


def _quix() -> list[str]:
    return [environments.python_of("quix"), str(HERE / "contenders" / "quix_keys.py")]


STORES = {
    "statehold": Contender("statehold", "statehold", lambda: [sys.executable, "-m", "benchmarks.keys_app"]),
    "streams": Contender("streams", "Kafka Streams, in-memory store", _streams),
    "quix": Contender("quix", "quixstreams", _quix),
}


@dataclass
class Result:
    """Seconds of one contender after `updates` updates of each key."""

    updates: int
    contender: Contender
    live: list[float] = field(default_factory=list)
    restored: list[float] = field(default_factory=list)
    skipped: str = ""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `restore`."""
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--updates", default="1,10")
    parser.add_argument("--only", default=",".join(STORES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quix-records", type=int, default=1_000_000, help="quixstreams sits out longer runs")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the moments of death")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when an answer was wrong."""
    console.print(f"{options.keys:,} keys, seed {options.seed}")
    rng = random.Random(options.seed)
    results, right, longest = [], True, None
    for updates in map(int, options.updates.split(",")):
        for name in options.only.split(","):
            result = Result(updates, STORES[name])
            results.append(result)
            if name == "quix" and updates * options.keys > options.quix_records:
                result.skipped = f"not run: {updates * options.keys:,} records take it too long"
                continue
            for _ in range(options.rounds):
                with Cluster() as cluster:
                    right = _run_once(cluster.bootstrap_servers, result, options.keys, rng.random() * 3) and right
    if "statehold" in options.only:
        longest = pauses.measure(options.keys)
    _report(results, longest)
    return 0 if right else 1


def _run_once(bootstrap: str, result: Result, keys: int, moment: float) -> bool:
    source, target = kafka.create(bootstrap, "puts"), kafka.create(bootstrap, "seen")
    writer = Writer(bootstrap, source, keys)
    for _ in range(result.updates):
        writer.pass_over()
    first = writer.look(1)
    job = new_job(bootstrap, 0, source, target)
    try:
        running = Running(result.contender, job)
    except Skipped as reason:
        result.skipped = str(reason)
        return True
    if not kafka.Ends(bootstrap, target).wait(1, running.alive, seconds=120 + keys * result.updates / 10_000):
        console.print(f"[red]{result.contender.title} did not get through[/red]\n{running.said()}")
        running.stop(kill=True)
        return False
    began = time.monotonic()
    while time.monotonic() - began < moment:
        writer.put(100)
    running.stop(kill=True)
    wait_empty(bootstrap, job["group"])
    wanted = writer.look(LOOKS)
    return _start_again(bootstrap, result, {**job, "prepare": False}, len(first), wanted)


def _start_again(bootstrap: str, result: Result, job: dict[str, Any], before: int, wanted: dict[str, int]) -> bool:
    started = time.time()
    running = Running(result.contender, job)  # a new folder: what was on disk is gone
    ends = kafka.Ends(bootstrap, job["output"])
    came = ends.wait(before + LOOKS, running.alive, seconds=300)
    log = running.log.read_text(errors="replace")
    running.stop()
    found = answers(bootstrap, job["output"])[before:]
    wrong = [(key, version, wanted.get(key)) for key, version, _ in found if wanted.get(key) != version]
    if not came or wrong or len(found) != LOOKS:
        console.print(f"[red]{result.contender.title}: {len(found)} answers, {len(wrong)} wrong {wrong[:2]}[/red]")
        console.print("\n".join(log.splitlines()[-5:]), markup=False)
        return False
    result.live.append(found[0][2] / 1000 - started)
    result.restored += restore_seconds(log)[:1]
    console.print(
        f"{result.contender.title}, {result.updates} x: live after {result.live[-1]:.2f} s, "
        f"of it restoring {result.restored[-1] if result.restored else float('nan'):.2f} s; {LOOKS} answers right"
    )
    return True


def restore_seconds(log: str) -> list[float]:
    """Return what a contender itself says of its restores, in seconds."""
    found = []
    for line in log.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if said.get("event") == "restored":
            found.append(float(said["seconds"]))
        elif "restore_ms" in said:
            found.append(said["restore_ms"] / 1000)
    return found


def wait_empty(bootstrap: str, group: str) -> None:
    """Wait until the broker has noticed that the killed member is gone."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    deadline = time.monotonic() + 120
    while admin.describe_consumer_groups([group])[group].result(kafka.LONG_WAIT).members:
        if time.monotonic() > deadline:
            raise RuntimeError(f"group {group} still has members after 120 s")
        time.sleep(0.2)


def _report(results: list[Result], longest: pauses.Pauses | None) -> None:
    figures, rows = Figures("restore"), []
    live: dict[tuple[int, str], float] = {}
    for result in results:
        title = f"{result.contender.title}, {result.updates} x"
        if not result.live:
            rows.append([title, result.skipped or "wrong", ""])
            continue
        live[result.updates, result.contender.letter] = seconds = statistics.median(result.live)
        restored = statistics.median(result.restored) if result.restored else None
        rows.append([title, f"{seconds:.2f}", f"{restored:.2f}" if restored is not None else ""])
        figures.add(f"{result.contender.letter}.{result.updates}x.live", seconds, "s", result.live)
        if restored is not None:
            figures.add(f"{result.contender.letter}.{result.updates}x.restore", restored, "s")
    show("from the start of the process to the first output", ["", "live after s", "of it restoring s"], rows)
    for updates, reach in REACH.items():
        pair = live.get((updates, "statehold")), live.get((updates, "streams"))
        if pair[0] and pair[1]:
            figures.add(f"{updates}x statehold/streams", pair[0] / pair[1], "ratio")
            console.print(f"{updates} x: statehold / Kafka Streams = {pair[0] / pair[1]:.2f} (at most {reach})")
    if longest is not None:
        longest.report(figures)
    figures.write()
