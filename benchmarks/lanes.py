"""`script/bench lanes`: 1, 8, 50, 200, 500 partitions in one process, the same load in all; and what they cost idle."""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from benchmarks import kafka, load
from benchmarks.contender import CONTENDERS, Running, cpu_seconds, new_job
from benchmarks.report import Figures, console, show
from benchmarks.statehold_app import settings_of
from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
from statehold.dev import Cluster

#: seconds to wait for all partitions to become live, and after the last output until the process counts as idle
_LIVE = 600.0
_SETTLE = 5.0


@dataclass
class Round:
    """One process, from its start to its end."""

    #: seconds from the start to the last partition's going live, and the processor time of that
    live: float = 0.0
    live_cpu: float = 0.0
    #: outputs per second, and the processor time of all
    rate: float = 0.0
    load_cpu: float = 0.0
    #: processor time per second without input
    idle: float = 0.0
    #: seconds from SIGTERM to the end
    stop: float = 0.0
    exit_code: int = 0
    peak_mb: float = 0.0
    #: runnable processes of the machine, mean of the last minute
    machine: float = 0.0


@dataclass
class Lane:
    """All rounds with one number of partitions."""

    rounds: list[Round] = field(default_factory=list)

    def median(self, name: str) -> float:
        """Return the median of one figure."""
        return float(statistics.median(getattr(each, name) for each in self.rounds))


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `lanes`."""
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", default="1,8,50,200,500")
    parser.add_argument("--commit", type=float, default=0.1, help="commit.interval in seconds")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds in which the idle process is measured")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when outputs were missing."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # of the topics' creation
    lanes = {int(each): Lane() for each in options.partitions.split(",")}
    right = True
    with Cluster() as cluster:
        bootstrap = cluster.bootstrap_servers
        for partitions in lanes:
            kafka.create(bootstrap, f"trades-{partitions}", partitions)
            load.fill(bootstrap, f"trades-{partitions}", options.records)
        for number in range(options.rounds):
            for partitions, lane in lanes.items():
                done = _run_once(bootstrap, partitions, number, options)
                lane.rounds += [done] if done is not None else []
                right = right and done is not None
    _report(lanes, options.records)
    return 0 if right else 1


def _run_once(bootstrap: str, partitions: int, number: int, options: argparse.Namespace) -> Round | None:
    records, idle = options.records, options.idle
    target = kafka.create(bootstrap, f"totals-{partitions}-{number}", partitions)
    done = Round()
    with tempfile.TemporaryDirectory(prefix="statehold-bench-") as folder:
        live = Path(folder, "live")
        job = new_job(bootstrap, records, f"trades-{partitions}", target, all_live=str(live), prepare=False)
        job["commit_seconds"] = options.commit
        settings = settings_of(job)
        ServiceTopics(settings, Names(job["group"], job["input"], ""), [target]).create("beginning")
        began, running = time.monotonic(), Running(CONTENDERS["a_origin"], job)
        while not live.exists() and running.alive() and time.monotonic() < began + _LIVE:
            time.sleep(0.05)
        done.live, done.live_cpu = time.monotonic() - began, cpu_seconds(running.process.pid)
    ends = kafka.Ends(bootstrap, target, partitions)
    came = ends.wait(records, running.alive, seconds=60 + records / 2_000)
    if came and running.alive():
        done.load_cpu = cpu_seconds(running.process.pid) - done.live_cpu
        time.sleep(_SETTLE)
        before, since = cpu_seconds(running.process.pid), time.monotonic()
        time.sleep(idle)
        done.idle = (cpu_seconds(running.process.pid) - before) / (time.monotonic() - since)
    said, done.machine = running.said(), os.getloadavg()[0]
    since = time.monotonic()
    usage = running.stop(patience=4 * settings.service.stop_timeout)
    done.stop, done.peak_mb, done.exit_code = time.monotonic() - since, usage.peak_mb, usage.exit_code
    stamps = sorted(message.timestamp()[1] for message in kafka.records_of(bootstrap, target, partitions))
    kafka.delete(bootstrap, target)
    if not came or len(stamps) != records or usage.exit_code != 0:
        console.print(f"[red]{partitions} partitions: {len(stamps):,} of {records:,} outputs[/red]\n{said}\n{done}")
        return None
    done.rate = load.Outcome(len(stamps), [], stamps).rate
    console.print(
        f"{partitions} partitions: {done.rate:,.0f} records/s, live after {done.live:.1f} s, idle {done.idle:.1%}, "
        f"stopped in {done.stop:.1f} s; load of the machine {done.machine:.1f}"
    )
    return done


def _report(lanes: dict[int, Lane], records: int) -> None:
    figures, rows = Figures("lanes"), []
    for partitions, lane in lanes.items():
        if not lane.rounds:
            continue
        rate, live, idle, stop = (lane.median(name) for name in ("rate", "live", "idle", "stop"))
        cpu, peak = lane.median("load_cpu") * 1e6 / records, max(each.peak_mb for each in lane.rounds)
        of_one = rate / lanes[1].median("rate") if 1 in lanes and lanes[1].rounds else 0.0
        ratio = f"{of_one:.2f}" if of_one else ""
        rows.append(
            [str(partitions), f"{rate:,.0f}", ratio]
            + [f"{value:.1f}" for value in (cpu, live, lane.median("live_cpu"))]
            + [f"{idle:.1%}", f"{stop:.1f}", f"{peak:.0f}"]
        )
        figures.add(f"{partitions}", rate, "records/s", [each.rate for each in lane.rounds])
        figures.add(f"{partitions}.cpu", cpu, "s/million records")
        figures.add(f"{partitions}.live", live, "s")
        figures.add(f"{partitions}.live_cpu", lane.median("live_cpu"), "s")
        figures.add(f"{partitions}.idle", idle, "cores")
        figures.add(f"{partitions}.stop", stop, "s")
        figures.add(f"{partitions}.memory", peak, "MB")
        if of_one:
            figures.add(f"{partitions}/1", of_one, "ratio")
    heads = ["partitions", "records/s", "of one", "CPU s/million", "s to live", "CPU s", "idle", "s to stop", "peak MB"]
    show("partitions in one process", heads, rows)
    figures.write()
