"""Run one workload by all contenders in turns, verify every output, and report rates, processor time and ratios.

The rate counts input records of all topics, over the last 80 % of the outputs by the times at which the broker
appended them; the warm rate leaves out the first 5 s of outputs instead. The processor time is that of the whole
process, start and first compilations included.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks import environments, kafka
from benchmarks.contender import HERE, Contender, Running, new_job
from benchmarks.environments import Skipped
from benchmarks.peers import workloads
from benchmarks.peers.workloads import Outputs, Workload
from benchmarks.report import Figures, console, rate_text, show, spread_text
from statehold.dev import Cluster

#: statehold's rate relative to that of quixstreams
QUIX_RATE = 8.0
#: quixstreams is about that much slower, so it gets a part of the records
_PART = {"quix": 5}


def _streams() -> list[str]:
    return ["java", "-Xms512m", "-Xmx1500m", "-cp", environments.streams_class_path(), "Peers"]


CONTENDERS = {
    "statehold": Contender("statehold", "statehold", lambda: [sys.executable, "-m", "benchmarks.peers.service"]),
    "streams": Contender("streams", "Kafka Streams exactly_once_v2", _streams),
    "quix": Contender(
        "quix",
        "quixstreams exactly-once",
        lambda: [environments.python_of("quix"), str(HERE / "contenders" / "quix_peers.py")],
    ),
}


@dataclass
class Result:
    """All runs of one contender."""

    rates: list[float] = field(default_factory=list)
    #: without the first 5 s of outputs; 0 for a run that was shorter
    warm: list[float] = field(default_factory=list)
    #: processor seconds per million records
    processor: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    wrong: int = 0


@dataclass(frozen=True)
class Filled:
    """The inputs of a workload on the broker, and what must come out."""

    inputs: tuple[str, ...]
    records: int
    counts: dict[str, int]
    truth: Outputs


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `join` and `window`."""
    parser.add_argument("--records", type=int, default=1_000_000, help="of all inputs; quixstreams gets a fifth")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender; the median counts")
    parser.add_argument("--only", default="", help=f"comma-separated: {','.join(CONTENDERS)}")


def run(name: str, works: Sequence[Workload], options: argparse.Namespace) -> int:
    """Run the workloads; 1 when a contender was wrong."""
    chosen = options.only.split(",") if options.only else list(CONTENDERS)
    figures, wrong = Figures(name), 0
    with Cluster(settings={"log.retention.check.interval.ms": "3600000"}) as cluster:
        for work in works:
            taking_part = [letter for letter in chosen if letter in work.contenders]
            results = _rounds(cluster.bootstrap_servers, work, taking_part, options)
            _report(work, results, figures)
            wrong += sum(result.wrong for result in results.values())
    figures.write()
    return 1 if wrong else 0


def _rounds(bootstrap: str, work: Workload, chosen: Sequence[str], options: argparse.Namespace) -> dict[str, Result]:
    filled: dict[int, Filled] = {}
    results = {letter: Result() for letter in chosen}
    console.print(f"[bold]{work.title}[/bold]: {options.records:,} records, 1 partition")
    for number in range(options.rounds):  # in rounds, so that a slow minute of the machine hits all alike
        for letter in list(results):
            part = _PART.get(letter, 1)
            if part not in filled:
                filled[part] = _fill(bootstrap, work, options.records // part)
            try:
                _run_once(bootstrap, work, filled[part], CONTENDERS[letter], number, results[letter])
            except Skipped as reason:
                console.print(f"{letter} skipped: {reason}")
                del results[letter]
    for each in filled.values():
        kafka.delete(bootstrap, *each.inputs)
    return results


def _fill(bootstrap: str, work: Workload, records: int) -> Filled:
    inputs = tuple(f"{name}-{records}" for name in work.inputs)
    for topic in inputs:
        kafka.create(bootstrap, topic, message_timestamp_type="CreateTime")
    counts: dict[str, int] = {}
    workloads.fill(bootstrap, counts, work.items(records), inputs)
    return Filled(inputs, sum(counts.values()), counts, work.truth(work.items(records)))


def _run_once(
    bootstrap: str, work: Workload, filled: Filled, contender: Contender, number: int, result: Result
) -> None:
    target = kafka.create(bootstrap, f"{work.name}-{contender.letter}-{number}")
    job = new_job(bootstrap, filled.records, "", target, work=work.name, inputs=filled.inputs, **work.settings)
    running = Running(contender, job)
    ended = _await_end(bootstrap, str(job["group"]), filled, running)
    said, usage = running.said(), running.stop()
    outcome = workloads.verify(bootstrap, target, work, filled.truth, peer=contender.letter != "statehold")
    if ended and not outcome.wrong:
        each = filled.records / max(1, outcome.records)
        rate, warm = outcome.rate * each, outcome.warm * each
        result.rates.append(rate)
        result.warm.append(warm)
        result.processor.append(usage.cpu_seconds / filled.records * 1_000_000)
        result.peak_mb = max(result.peak_mb, usage.peak_mb)
        console.print(
            f"{contender.title}: {rate_text([rate])}/s, warm {rate_text([warm])}/s, "
            f"{result.processor[-1]:.1f} CPU s per million, {outcome.records:,} outputs, all right"
        )
    else:
        result.wrong += 1
        console.print(f"{contender.title}: [red]wrong[/red], {outcome.records:,} outputs\n{said}")
        for line in outcome.wrong[:3]:
            console.print(f"  [red]{line}[/red]")
    kafka.delete(bootstrap, target)


def _await_end(bootstrap: str, group: str, filled: Filled, running: Running) -> bool:
    """Wait until the group has committed all inputs."""
    inputs = [kafka.Committed(bootstrap, group, topic, 1) for topic in filled.inputs]
    deadline = time.monotonic() + 60 + filled.records / 1_000
    while time.monotonic() < deadline and running.alive():
        if sum(each.total() for each in inputs) >= filled.records:
            return True
        time.sleep(0.2)
    return False


def _report(work: Workload, results: dict[str, Result], figures: Figures) -> None:
    rows, rates, processor = [], dict[str, float](), dict[str, float]()
    for letter, result in results.items():
        title = CONTENDERS[letter].title
        if result.wrong or not result.rates:
            rows.append([title, "wrong", "", "", "", ""])
            continue
        processor[letter] = statistics.median(result.processor)
        row = [title, rate_text(result.rates), spread_text(result.rates), rate_text(result.warm)]
        rows.append([*row, f"{processor[letter]:.1f}", f"{result.peak_mb:.0f}"])
        if known := [rate for rate in result.rates if rate]:
            rates[letter] = statistics.median(known)
            figures.add(f"{work.name}.{letter}", rates[letter], "records/s", known)
        if known := [rate for rate in result.warm if rate]:
            figures.add(f"{work.name}.{letter}.warm", statistics.median(known), "records/s", known)
        figures.add(f"{work.name}.{letter}.cpu", processor[letter], "s/million", result.processor)
        figures.add(f"{work.name}.{letter}.memory", result.peak_mb, "MB")
    show(work.title, ["contender", "records/s", "lowest-highest", "warm", "CPU s/million", "peak MB"], rows)
    ratios = []
    if "statehold" in rates:
        for letter, reach in {"streams": work.rate, "quix": QUIX_RATE}.items():
            if letter in rates:
                ratio = rates["statehold"] / rates[letter]
                figures.add(f"{work.name}.statehold/{letter}", ratio, "ratio")
                ratios.append(
                    [f"records/s, statehold / {letter}", f"{ratio:.2f}", f">= {reach}", _verdict(ratio >= reach)]
                )
        if "streams" in processor:
            ratio = processor["statehold"] / processor["streams"]
            figures.add(f"{work.name}.cpu.statehold/streams", ratio, "ratio")
            verdict = _verdict(ratio <= work.processor)
            ratios.append(["CPU, statehold / streams", f"{ratio:.2f}", f"<= {work.processor}", verdict])
    if ratios:
        show("ratios", ["", "measured", "goal", ""], ratios)


def _verdict(reached: bool) -> str:
    return "reached" if reached else "not reached"
