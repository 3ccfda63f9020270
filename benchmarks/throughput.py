"""`script/bench throughput`: the same work by every contender, one after the other, on one broker.

How a rate is measured, for all alike: the output topic's records carry the time at which the broker appended them;
the rate is taken over the last 80 % of them, so that neither start-up nor a JVM's first compilations count. The
outputs are read by a read_committed consumer afterwards, and each is compared with a recomputation from the seed. The
warm rate leaves out the first 5 s of outputs instead; it needs runs of more than 6 s, better of 20 s.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from dataclasses import dataclass, field

import structlog

from benchmarks import kafka, load
from benchmarks.contender import CONTENDERS, Contender, Running, Usage, new_job
from benchmarks.environments import Skipped
from benchmarks.report import Figures, console, rate_text, show, spread_text
from benchmarks.statehold_app import settings_of
from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
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
    ("r", "a_origin", 0.6),
    ("r", "rf", 1.5),
    ("r", "re", 6.0),
)
#: of processor time, and the most that each may be
CPU_RATIOS = (("a_origin", "f", 0.25), ("a_origin", "d", 1.2), ("r", "rf", 0.5))


@dataclass
class Result:
    """All runs of one contender."""

    contender: Contender
    rates: list[float] = field(default_factory=list)
    #: of runs that were long enough, 0 for others
    warm: list[float] = field(default_factory=list)
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
    parser.add_argument("--partitions", type=int, default=1, help="of input and output; more by a,b,f alone")
    parser.add_argument("--processes", type=int, default=1, help="of each contender; more by a,b,f alone")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when a contender was wrong."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # of the topics' creation
    one = options.partitions == options.processes == 1
    able = [letter for letter, each in CONTENDERS.items() if one or each.spreads]
    chosen = options.only.split(",") if options.only else [letter for letter in able if CONTENDERS[letter].usual]
    if alone := [letter for letter in chosen if letter not in able]:
        console.print(f"{', '.join(alone)}: only one partition and one process")
        return 2
    results = {letter: Result(CONTENDERS[letter]) for letter in chosen}
    with Cluster(settings={"log.retention.check.interval.ms": "3600000"}) as cluster:
        bootstrap = cluster.bootstrap_servers
        kafka.create(bootstrap, "trades", options.partitions)
        size = load.fill(bootstrap, "trades", options.records)
        console.print(f"{options.records:,} trades of {size:.0f} bytes, {load.ACCOUNTS:,} accounts, {_shape(options)}")
        truth = load.expected(options.records)
        for number in range(options.rounds):  # in rounds, so that a slow minute of the machine hits all alike
            for result in results.values():
                if not result.skipped:
                    _run_once(bootstrap, result, number, options, truth)
    _report(results, options)
    return 1 if any(result.wrong for result in results.values()) else 0


def _shape(options: argparse.Namespace) -> str:
    parts, processes = options.partitions, options.processes
    many = f"{processes} processes" if processes > 1 else "one process"
    return f"{parts} partitions, {many} each" if parts > 1 else "1 partition"


def _run_once(
    bootstrap: str, result: Result, number: int, options: argparse.Namespace, truth: dict[str, list[int]]
) -> None:
    contender, records, partitions = result.contender, options.records, options.partitions
    target = kafka.create(bootstrap, f"totals-{contender.letter}-{number}", partitions)
    job = new_job(bootstrap, records, "trades", target)
    kafka.create(bootstrap, job["changelog"])
    if options.processes > 1 and contender.command is CONTENDERS["a"].command:
        job["prepare"] = False  # because only one may create the topics
        ServiceTopics(settings_of(job), Names(job["group"], job["input"], ""), [target]).create("beginning")
    try:
        all_running = [Running(contender, job) for _ in range(options.processes)]
    except Skipped as reason:
        result.skipped = str(reason)
        console.print(f"({contender.letter}) skipped: {reason}")
        return

    def alive() -> bool:
        return len([each for each in all_running if each.alive()]) == len(all_running)  # asks each for its memory

    came = kafka.Ends(bootstrap, target, partitions).wait(records, alive, seconds=60 + records / 5_000)
    said = "\n".join(each.said() for each in all_running)
    used = [each.stop() for each in all_running]
    result.usages.append(
        Usage(sum(each.cpu_seconds for each in used), sum(each.peak_mb for each in used), used[0].exit_code)
    )
    outcome = load.verify(
        bootstrap, target, truth, lambda line: console.print(f"  [red]{line}[/red]"), partitions=partitions
    )
    if not came or outcome.wrong:
        result.wrong += 1
        console.print(f"({contender.letter}) [red]wrong[/red]: {outcome.records:,} outputs\n{said}", markup=True)
    else:
        result.rates.append(outcome.rate)
        result.warm.append(outcome.warm)
        rate, warm = rate_text([outcome.rate]), rate_text([outcome.warm])
        console.print(f"({contender.letter}) {contender.title}: {rate}/s, warm {warm}/s, all outputs right")
    kafka.delete(bootstrap, target)


def _report(results: dict[str, Result], options: argparse.Namespace) -> None:
    figures, rows, records = Figures("throughput"), list[list[str]](), options.records
    for letter, result in results.items():
        title = f"({letter}) {result.contender.title}"
        if result.skipped or not result.rates:
            rows.append([title, result.skipped or "wrong", "", "", "", ""])
            continue
        peak = max(usage.peak_mb for usage in result.usages)
        spread = spread_text(result.rates)
        million = result.cpu * 1e6 / records
        warm = rate_text(result.warm)
        rows.append([title, rate_text(result.rates), spread, warm, f"{million:.2f}", f"{peak:.0f}"])
        figures.add(letter, result.rate, "records/s", result.rates)
        if known := [rate for rate in result.warm if rate]:
            figures.add(f"{letter}.warm", statistics.median(known), "records/s", known)
        figures.add(f"{letter}.cpu", million, "s/million records")
        figures.add(f"{letter}.memory", peak, "MB")
    heads = ["contender", "records/s", "lowest-highest", "warm", "CPU s per million", "peak MB"]
    show(f"throughput, exactly-once, {_shape(options)}", heads, rows)
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
