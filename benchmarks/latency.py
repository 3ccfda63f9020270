"""`script/bench latency`: end-to-end time at a steady load, statehold against the hand-written loop (d).

A process of its own sends 5,000 trades a second with the moment of sending in each; another reads the outputs
read_committed. Latency is the time from a trade's sending until its output can be read; both ends use this machine's
monotonic clock. About half of the commit interval is waiting by choice.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field

from benchmarks import kafka, load
from benchmarks.contender import CONTENDERS, Contender, Running, Usage, new_job
from benchmarks.report import Figures, console, show
from statehold.dev import Cluster

WARM_SECONDS = 5.0


@dataclass
class Result:
    """All rounds of one contender."""

    contender: Contender
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    p999: list[float] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `latency`."""
    parser.add_argument("--rate", type=int, default=5_000, help="trades a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commit", type=float, default=0.1, help="seconds between two commits")
    parser.add_argument("--only", default="a_origin,d,f")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when outputs were missing."""
    results = {letter: Result(CONTENDERS[letter]) for letter in options.only.split(",")}
    right = True
    with Cluster() as cluster:
        for number in range(options.rounds):
            for letter, result in results.items():
                right = _run_once(cluster.bootstrap_servers, result, f"{letter}-{number}", options) and right
    _report(results, int(options.rate * (WARM_SECONDS + options.seconds)), options)
    return 0 if right else 1


def _run_once(bootstrap: str, result: Result, name: str, options: argparse.Namespace) -> bool:
    count = int(options.rate * (WARM_SECONDS + options.seconds))
    source, target = kafka.create(bootstrap, f"in-{name}"), kafka.create(bootstrap, f"out-{name}")
    load.fill(bootstrap, source, 1)  # the output of one trade shows that the contender is live
    job = new_job(bootstrap, count + 1, source, target, commit_seconds=options.commit)
    kafka.create(bootstrap, job["changelog"])
    running = Running(result.contender, job)
    if not kafka.Ends(bootstrap, target).wait(1, running.alive, seconds=60):
        console.print(f"[red]{name} did not start[/red]\n{running.said()}")
        running.stop()
        return False
    job_of_pace = {"bootstrap": bootstrap, "input": source, "output": target, "rate": options.rate, "count": count}
    paced = [sys.executable, "-m", "benchmarks.pace", json.dumps(job_of_pace)]
    done = subprocess.run(paced, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    said = running.said()
    result.usages.append(running.stop())
    if done.returncode != 0:
        console.print(f"[red]{name}: {done.stderr.strip()[-300:]}[/red]\n{said}")
        return False
    delays = sorted(json.loads(done.stdout))
    result.p50.append(statistics.median(delays))
    result.p99.append(delays[int(len(delays) * 0.99)])
    result.p999.append(delays[int(len(delays) * 0.999)])
    shown = f"p50 {result.p50[-1]:.0f} ms, p99 {result.p99[-1]:.0f} ms, p99.9 {result.p999[-1]:.0f} ms"
    console.print(f"({name}) {shown}, {len(delays):,} outputs")
    return True


def _report(results: dict[str, Result], count: int, options: argparse.Namespace) -> None:
    figures, rows = Figures(f"latency-{options.rate}-{options.commit * 1000:g}ms"), []
    for letter, result in results.items():
        if not result.p50:
            continue
        p50, p99, p999 = (statistics.median(each) for each in (result.p50, result.p99, result.p999))
        cpu = statistics.median(usage.cpu_seconds for usage in result.usages) * 1e6 / count
        peak = max(usage.peak_mb for usage in result.usages)
        rows.append([result.contender.title, f"{p50:.0f}", f"{p99:.0f}", f"{p999:.0f}", f"{cpu:.1f}", f"{peak:.0f}"])
        figures.add(f"{letter}.p50", p50, "ms", result.p50)
        figures.add(f"{letter}.p99", p99, "ms", result.p99)
        figures.add(f"{letter}.p99.9", p999, "ms", result.p999)
        figures.add(f"{letter}.cpu", cpu, "s/million records")
        figures.add(f"{letter}.memory", peak, "MB")
    if "a_origin" in results and "d" in results and results["a_origin"].p50 and results["d"].p50:
        for name in ("p50", "p99", "p999"):
            above, below = (statistics.median(getattr(results[letter], name)) for letter in ("a_origin", "d"))
            figures.add(f"{name} a_origin/d", above / below, "ratio")
            console.print(f"{name}: (a_origin) / (d) = {above / below:.2f}")
    heads = ["contender", "p50 ms", "p99 ms", "p99.9 ms", "CPU s per million", "peak MB"]
    show(f"{options.rate:,} records/s, a commit every {options.commit * 1000:g} ms", heads, rows)
    figures.write()
