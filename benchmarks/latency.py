"""`script/bench latency`: end-to-end time at a steady load: statehold, Kafka Streams and the hand-written loop.

A process of its own sends trades at a steady rate and notes when; it also reads the outputs read_committed. Latency is
the time from a trade's sending until its output can be read; both ends use this machine's monotonic clock. About half
of the commit interval is waiting by choice.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Final

from benchmarks import kafka, load
from benchmarks.contender import CONTENDERS, Contender, Running, Usage, new_job
from benchmarks.report import Figures, console, show
from statehold.dev import Cluster

WARM_SECONDS = 5.0
_SHARES: Final = ("p50", "p99", "p999")


@dataclass
class Result:
    """All rounds of one contender at one rate and commit interval."""

    contender: Contender
    rate: int
    commit: float
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    p999: list[float] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)

    def median(self, share: str) -> float:
        """Return the median of all rounds, in ms."""
        return float(statistics.median(getattr(self, share)))


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `latency`."""
    parser.add_argument(
        "--rates", default="1000,5000,50000,110000", help="trades a second; two cores process about twice the last"
    )
    parser.add_argument("--commits", default="5,10,100", help="milliseconds between two commits")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="a_origin,d,f")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when outputs were missing."""
    settings = [
        (int(rate), float(commit) / 1000) for rate in options.rates.split(",") for commit in options.commits.split(",")
    ]
    letters, right = options.only.split(","), True
    results = {(*each, letter): Result(CONTENDERS[letter], *each) for each in settings for letter in letters}
    for number in range(options.rounds):
        with Cluster() as cluster:  # a new one for each round, because the topics grow
            for place, result in results.items():
                name = "-".join(map(str, (*place, number)))
                right = _run_once(cluster.bootstrap_servers, result, name, options.seconds) and right
    _report(results, options)
    return 0 if right else 1


def _run_once(bootstrap: str, result: Result, name: str, seconds: float) -> bool:
    count = int(result.rate * (WARM_SECONDS + seconds))
    source, target = kafka.create(bootstrap, f"in-{name}"), kafka.create(bootstrap, f"out-{name}")
    load.fill(bootstrap, source, 1)  # the output of one trade shows that the contender is live
    job = new_job(bootstrap, count + 1, source, target, commit_seconds=result.commit)
    kafka.create(bootstrap, job["changelog"])
    running = Running(result.contender, job)
    if not kafka.Ends(bootstrap, target).wait(1, running.alive, seconds=60):
        console.print(f"[red]{name} did not start[/red]\n{running.said()}")
        running.stop()
        return False
    job_of_pace = {"bootstrap": bootstrap, "input": source, "output": target, "rate": result.rate, "count": count}
    paced = [sys.executable, "-m", "benchmarks.pace", json.dumps(job_of_pace)]
    done = subprocess.run(paced, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    said = running.said()
    usage = running.stop()
    if done.returncode != 0:
        console.print(f"[red]{name}: {done.stderr.strip()[-300:]}[/red]\n{said}")
        return False
    result.usages.append(usage)
    delays = sorted(json.loads(done.stdout))
    result.p50.append(statistics.median(delays))
    result.p99.append(delays[int(len(delays) * 0.99)])
    result.p999.append(delays[int(len(delays) * 0.999)])
    shown = f"p50 {result.p50[-1]:.0f} ms, p99 {result.p99[-1]:.0f} ms, p99.9 {result.p999[-1]:.0f} ms"
    console.print(f"({name}) {shown}, {len(delays):,} of the outputs")
    return True


def _report(results: dict[tuple[int, float, str], Result], options: argparse.Namespace) -> None:
    figures, rows = Figures("latency"), []
    for (rate, commit, letter), result in results.items():
        if not result.p50:
            continue
        count, place = rate * (WARM_SECONDS + options.seconds), f"{rate}.{commit * 1000:g}.{letter}"
        cpu = statistics.median(usage.cpu_seconds for usage in result.usages) * 1e6 / count
        by_hand = results.get((rate, commit, "d"))
        ratio = result.median("p99") / by_hand.median("p99") if by_hand is not None and by_hand.p50 else 0.0
        shown = [f"{result.median(share):.0f}" for share in _SHARES]
        rows.append(
            [f"{rate:,}/s, {commit * 1000:g} ms: {result.contender.title}", *shown, f"{ratio:.2f}", f"{cpu:.1f}"]
        )
        for share in _SHARES:
            figures.add(f"{place}.{share}", result.median(share), "ms", getattr(result, share))
        figures.add(f"{place}.cpu", cpu, "s/million records")
    heads = ["rate, commit interval", "p50 ms", "p99 ms", "p99.9 ms", "p99, of (d)", "CPU s per million"]
    show("time from sending to a readable output", heads, rows)
    figures.write()
