"""`script/bench throughput`: the same work by every contender, one after the other, on one broker.

How a rate is measured, for all alike: the output topic's records carry the time at which the broker appended them;
the rate is taken over the last 80 % of them, so that neither start-up nor a JVM's first compilations count. The
outputs are read by a read_committed consumer afterwards, and each is compared with a recomputation from the seed.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, field

from benchmarks import kafka, load
from benchmarks.contender import CONTENDERS, Contender, Running, Usage, new_job
from benchmarks.environments import Skipped
from benchmarks.report import Figures, console, show
from statehold.dev import Cluster

#: of rates, and the least that each should reach; a_origin has the default settings
RATIOS = (
    ("a_origin", "f", 2.5),
    ("a_origin", "d", 0.85),
    ("b_origin", "a_origin", 1.15),
    ("a_origin", "e", 12.0),
    ("a", "d", 0.85),
    ("b", "a", 1.15),
    ("d", "c", 1.8),
)
#: of processor time, and the most that each may be
CPU_RATIOS = (("a_origin", "f", 0.25), ("a_origin", "d", 1.2))


@dataclass
class Result:
    """All runs of one contender."""

    contender: Contender
    rates: list[float] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    wrong: int = 0
    skipped: str = ""

    @property
    def rate(self) -> float:
        """Return the median rate; 0 when it never ran right."""
        return statistics.median(self.rates) if self.rates and not self.wrong else 0.0

    @property
    def cpu(self) -> float:
        """Return the median processor time of a run in seconds, start-up included."""
        return statistics.median(usage.cpu_seconds for usage in self.usages)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `throughput`."""
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender; the median counts")
    parser.add_argument("--only", default="", help=f"comma-separated: {','.join(CONTENDERS)}")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when a contender was wrong."""
    chosen = options.only.split(",") if options.only else list(CONTENDERS)
    results = {letter: Result(CONTENDERS[letter]) for letter in chosen}
    with Cluster(settings={"log.retention.check.interval.ms": "3600000"}) as cluster:
        bootstrap = cluster.bootstrap_servers
        kafka.create(bootstrap, "trades")
        size = load.fill(bootstrap, "trades", options.records)
        console.print(f"{options.records:,} trades of {size:.0f} bytes, {load.ACCOUNTS:,} accounts, 1 partition")
        truth = load.expected(options.records)
        for number in range(options.rounds):  # in rounds, so that a slow minute of the machine hits all alike
            for result in results.values():
                if not result.skipped:
                    _run_once(bootstrap, result, number, options.records, truth)
    _report(results, options.records)
    return 1 if any(result.wrong for result in results.values()) else 0


def _run_once(bootstrap: str, result: Result, number: int, records: int, truth: dict[str, list[int]]) -> None:
    contender = result.contender
    target = kafka.create(bootstrap, f"totals-{contender.letter}-{number}")
    job = new_job(bootstrap, records, "trades", target)
    kafka.create(bootstrap, job["changelog"])
    try:
        running = Running(contender, job)
    except Skipped as reason:
        result.skipped = str(reason)
        console.print(f"({contender.letter}) skipped: {reason}")
        return
    came = kafka.Ends(bootstrap, target).wait(records, running.alive, seconds=60 + records / 5_000)
    said = running.said()
    result.usages.append(running.stop())
    outcome = load.verify(bootstrap, target, truth, report=lambda line: console.print(f"  [red]{line}[/red]"))
    if not came or outcome.wrong:
        result.wrong += 1
        console.print(f"({contender.letter}) [red]wrong[/red]: {outcome.records:,} outputs\n{said}", markup=True)
    else:
        result.rates.append(outcome.rate)
        console.print(f"({contender.letter}) {contender.title}: {outcome.rate:,.0f}/s, all outputs right")
    kafka.delete(bootstrap, target)


def _report(results: dict[str, Result], records: int) -> None:
    figures, rows = Figures("throughput"), []
    for letter, result in results.items():
        title = f"({letter}) {result.contender.title}"
        if result.skipped or not result.rates:
            rows.append([title, result.skipped or "wrong", "", "", ""])
            continue
        peak = max(usage.peak_mb for usage in result.usages)
        spread = f"{min(result.rates):,.0f}-{max(result.rates):,.0f}"
        million = result.cpu * 1e6 / records
        rows.append([title, f"{result.rate:,.0f}", spread, f"{million:.2f}", f"{peak:.0f}"])
        figures.add(letter, result.rate, "records/s", result.rates)
        figures.add(f"{letter}.cpu", million, "s/million records")
        figures.add(f"{letter}.memory", peak, "MB")
    show("throughput, exactly-once", ["contender", "records/s", "lowest-highest", "CPU s per million", "peak MB"], rows)
    ratios = []
    for above, below, reach in RATIOS:
        if above in results and below in results and results[above].rate and results[below].rate:
            ratio = results[above].rate / results[below].rate
            figures.add(f"{above}/{below}", ratio, "ratio")
            ratios.append(
                [f"({above}) / ({below})", f"{ratio:.2f}", f"{reach}", "reached" if ratio >= reach else "not reached"]
            )
    for above, below, most in CPU_RATIOS:
        if all(letter in results and results[letter].rate for letter in (above, below)):
            ratio = results[above].cpu / results[below].cpu
            figures.add(f"{above}/{below}.cpu", ratio, "ratio")
            reached = "reached" if ratio <= most else "not reached"
            ratios.append([f"CPU ({above}) / ({below})", f"{ratio:.2f}", f"at most {most}", reached])
    if ratios:
        show("ratios", ["", "measured", "at least", ""], ratios)
    figures.write()
