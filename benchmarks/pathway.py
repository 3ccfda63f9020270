"""`script/bench pathway`: keyed totals by statehold and by Pathway, from the start of the process.

Pathway writes the last total of an account in each commit, statehold one output for each trade, so the outputs cannot
be compared one by one, and neither can their rates. What both must reach is the last total of every account. The time
is that from the start of the process until the broker had appended the last of these; the rate is records by that time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from benchmarks import environments, kafka, load
from benchmarks.contender import CONTENDERS, HERE, Contender, Running, Usage, new_job
from benchmarks.environments import Skipped
from benchmarks.report import Figures, console, show
from statehold.dev import Cluster


class Total(msgspec.Struct, frozen=True, gc=False):
    """An output of either. Pathway takes the total before it back with `diff` -1."""

    account: str
    total: int
    count: int
    diff: int = 1


def _pathway() -> list[str]:
    return [environments.python_of("pathway"), str(HERE / "contenders" / "pathway_totals.py")]


TAKING_PART = {
    "statehold": CONTENDERS["a_origin"],
    "pathway": Contender("pathway", "Pathway, no persistence", _pathway, {"persistence": False}),
    "persistent": Contender("persistent", "Pathway, persistence in files", _pathway, {"persistence": True}),
}


@dataclass
class Runs:
    """All runs of one of them."""

    contender: Contender
    seconds: list[float] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    outputs: int = 0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pathway`."""
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each; the median counts")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 if a total was wrong or missing."""
    found = {name: Runs(contender) for name, contender in TAKING_PART.items()}
    with Cluster(settings={"log.retention.check.interval.ms": "3600000"}) as cluster:
        bootstrap = cluster.bootstrap_servers
        kafka.create(bootstrap, "trades")
        load.fill(bootstrap, "trades", options.records)
        truth = {name: (history[-1], len(history)) for name, history in load.expected(options.records).items()}
        console.print(f"{options.records:,} trades, {len(truth):,} accounts, 1 partition, from the start of a process")
        for number in range(options.rounds):
            for name, runs in found.items():
                try:
                    if not _run_once(bootstrap, f"{name}-{number}", runs, options.records, truth):
                        return 1
                except Skipped as reason:
                    console.print(f"{name} skipped: {reason}")
    _report(found, options.records)
    return 0


def _run_once(bootstrap: str, name: str, runs: Runs, records: int, truth: dict[str, tuple[int, int]]) -> bool:
    target = kafka.create(bootstrap, f"totals-{name}")
    job: dict[str, Any] = new_job(bootstrap, records, "trades", target)
    kafka.create(bootstrap, job["changelog"])
    started = time.time()
    running = Running(runs.contender, job)
    ends = kafka.Ends(bootstrap, target)
    deadline, last = time.monotonic() + 120 + records / 5_000, None
    while last is None and time.monotonic() < deadline and running.alive():
        ends.wait(len(truth), running.alive, seconds=10)  # until nothing has been added for a moment
        last, runs.outputs = _last_total(bootstrap, target, truth)
    said = running.said()
    runs.usages.append(running.stop())
    kafka.delete(bootstrap, target)
    if last is None:
        console.print(f"{runs.contender.title}: [red]not all totals came[/red]\n{said}")
        return False
    runs.seconds.append(last - started)
    rate, cpu = records / runs.seconds[-1], runs.usages[-1].cpu_seconds * 1e6 / records
    console.print(
        f"{runs.contender.title}: {rate:,.0f}/s, {cpu:.1f} CPU s per million, {runs.outputs:,} outputs, totals right"
    )
    return True


def _last_total(bootstrap: str, target: str, truth: dict[str, tuple[int, int]]) -> tuple[float | None, int]:
    """Return the time at which the last right total was appended, None if one is missing; and the number of outputs."""
    decode, found, at, outputs = msgspec.json.Decoder(Total).decode, dict[str, tuple[int, int]](), 0, 0
    for message in kafka.records_of(bootstrap, target):
        one, outputs = decode(message.value() or b""), outputs + 1
        if one.diff > 0:
            found[one.account] = one.total, one.count
            at = max(at, message.timestamp()[1])
    return (at / 1000 if found == truth else None), outputs


def _report(found: dict[str, Runs], records: int) -> None:
    figures, rows, ratios = Figures("pathway"), [], []
    ran = {name: runs for name, runs in found.items() if runs.seconds}
    rates = {name: records / statistics.median(runs.seconds) for name, runs in ran.items()}
    cpu = {
        name: statistics.median(used.cpu_seconds for used in runs.usages) * 1e6 / records for name, runs in ran.items()
    }
    for name, runs in ran.items():
        spread = f"{records / max(runs.seconds):,.0f}-{records / min(runs.seconds):,.0f}"
        peak = max(used.peak_mb for used in runs.usages)
        rows.append(
            [
                runs.contender.title,
                f"{rates[name]:,.0f}",
                spread,
                f"{cpu[name]:.1f}",
                f"{peak:.0f}",
                f"{runs.outputs:,}",
            ]
        )
        figures.add(name, rates[name], "records/s", [records / each for each in runs.seconds])
        figures.add(f"{name}.cpu", cpu[name], "s/million records")
    columns = ["", "records/s", "lowest-highest", "CPU s per million", "peak MB", "outputs"]
    show("keyed totals, from the start of a process", columns, rows)
    for name in ran.keys() - {"statehold"}:
        if "statehold" in ran:
            figures.add(f"statehold/{name}", rates["statehold"] / rates[name], "ratio")
            ratios.append(
                [
                    f"statehold / {name}",
                    f"{rates['statehold'] / rates[name]:.2f}",
                    f"{cpu['statehold'] / cpu[name]:.2f}",
                ]
            )
    show("ratios", ["", "rate", "processor time"], ratios)
    figures.write()
