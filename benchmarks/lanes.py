"""`script/bench lanes`: 1, 8, 50, 100 partitions in one process, the same load in all."""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, field

from benchmarks import kafka, load
from benchmarks.contender import CONTENDERS, Running, Usage, new_job
from benchmarks.report import Figures, console, show
from statehold.dev import Cluster


@dataclass
class Lane:
    """All rounds with one number of partitions."""

    rates: list[float] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `lanes`."""
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", default="1,8,50,100")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when outputs were missing."""
    lanes = {int(each): Lane() for each in options.partitions.split(",")}
    right = True
    with Cluster() as cluster:
        bootstrap = cluster.bootstrap_servers
        for partitions in lanes:
            kafka.create(bootstrap, f"trades-{partitions}", partitions)
            load.fill(bootstrap, f"trades-{partitions}", options.records, partitions=partitions)
        for number in range(options.rounds):
            for partitions, lane in lanes.items():
                right = _run_once(bootstrap, partitions, number, lane, options.records) and right
    _report(lanes, options.records)
    return 0 if right else 1


def _run_once(bootstrap: str, partitions: int, number: int, lane: Lane, records: int) -> bool:
    target = kafka.create(bootstrap, f"totals-{partitions}-{number}", partitions)
    running = Running(CONTENDERS["a"], new_job(bootstrap, records, f"trades-{partitions}", target))
    ends = kafka.Ends(bootstrap, target, partitions)
    came = ends.wait(records, running.alive, seconds=60 + records / 2_000)
    said = running.said()
    lane.usages.append(running.stop())
    stamps = sorted(message.timestamp()[1] for message in kafka.records_of(bootstrap, target, partitions))
    kafka.delete(bootstrap, target)
    if not came or len(stamps) != records:
        console.print(f"[red]{partitions} partitions: {len(stamps):,} of {records:,} outputs[/red]\n{said}")
        return False
    lane.rates.append(load.Outcome(len(stamps), [], stamps).rate)
    console.print(f"{partitions} partitions: {lane.rates[-1]:,.0f} records/s")
    return True


def _report(lanes: dict[int, Lane], records: int) -> None:
    figures, rows = Figures("lanes"), []
    for partitions, lane in lanes.items():
        if not lane.rates:
            continue
        rate = statistics.median(lane.rates)
        cpu = statistics.median(usage.cpu_seconds for usage in lane.usages) * 1e6 / records
        peak = max(usage.peak_mb for usage in lane.usages)
        of_one = rate / statistics.median(lanes[1].rates) if 1 in lanes and lanes[1].rates else 0.0
        rows.append([str(partitions), f"{rate:,.0f}", f"{of_one:.2f}" if of_one else "", f"{cpu:.1f}", f"{peak:.0f}"])
        figures.add(f"{partitions}", rate, "records/s")
        figures.add(f"{partitions}.cpu", cpu, "s/million records")
        figures.add(f"{partitions}.memory", peak, "MB")
        if of_one:
            figures.add(f"{partitions}/1", of_one, "ratio")
    show("partitions in one process", ["partitions", "records/s", "of one", "CPU s per million", "peak MB"], rows)
    figures.write()
