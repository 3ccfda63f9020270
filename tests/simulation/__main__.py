"""Runs random schedules: python -m tests.simulation --first 0 --count 1000.

`--record FILE` adds a line to a file such as tests/simulation/recorded.jsonl, where the runs of several evenings are
kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.simulation.scenarios import SCENARIOS, SHORT_SCENARIOS, scenario_of

from statehold.testing.simulation.schedule import Schedule
from statehold.testing.simulation.simulation import run
from statehold.worker.common.lifecycle import EDGES, Event, Phase

ALL = (*SCENARIOS, *SHORT_SCENARIOS)
#: phases in which a partition does nothing
AT_REST = (Phase.ASSIGNED, Phase.CLOSED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--stop", action="store_true", help="stop at the first violation")
    parser.add_argument("--scenario", type=int, default=None)
    parser.add_argument("--coverage", action="store_true", help="count calls and actions by phase, and edges")
    parser.add_argument("--record", type=Path, metavar="FILE", help="add a line with what was run and found")
    options = parser.parse_args()
    gc.disable()
    gc.freeze()
    gc.freeze = lambda: None  # a restore freezes the heap, and a run that has ended could not be collected then
    reached, happened, edges = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[tuple[Phase, Event]]()
    began, steps, bad, seconds = time.process_time(), 0, 0, 0.0
    for seed in range(options.first, options.first + options.count):
        scenario = scenario_of(seed) if options.scenario is None else ALL[options.scenario]
        report = run(scenario, Schedule.random(seed))
        steps, seconds = steps + report.steps, seconds + report.seconds
        reached += report.observer.coverage
        happened += report.observer.happened
        edges += report.observer.edges
        if report.violation is not None:
            bad += 1
            text = f"{type(report.violation).__name__}: {report.violation}"
            print(f"seed {seed} ({scenario.name}), {len(report.taken)} actions: {text[:500]}", flush=True)
            if options.stop:
                break
        if seed % 10 == 9:
            gc.collect(1)  # all that is not frozen is young; the last run may still be referred to
    spent, done = time.process_time() - began, seed - options.first + 1
    each = f"{steps / done:.0f} steps and {seconds / done:.0f} s of virtual time each"
    print(f"{done} schedules, {bad} violations; {each}; {done / spent * 60:.0f} a minute of processor time")
    if options.record is not None:
        record(options.record, first=options.first, schedules=done, steps=steps, violations=bad, seconds=round(spent))
    if options.coverage:
        show("call", reached)
        show("action", happened)
        show_edges(edges)
    return 1 if bad else 0


def record(path: Path, **found: int) -> None:
    """Add a line to the file: the commit that ran, the first seed, schedules, steps, violations, processor time."""
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    line = {"date": time.strftime("%Y-%m-%d"), "commit": asked.stdout.strip(), **found}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def show(what: str, reached: Counter[tuple[str, str]]) -> None:
    """Print how often each call or action came in each phase of a partition, and the pairs that never did."""
    names, phases = sorted({name for name, _ in reached}), [phase.value for phase in Phase if phase not in AT_REST]
    print(f"\n{what} by phase")
    for name in names:
        print(f"{name:14} " + " ".join(f"{phase}={reached[name, phase]}" for phase in phases if reached[name, phase]))
    never = [f"{name}/{phase}" for name in names for phase in phases if not reached[name, phase]]
    print(f"never ({len(never)} of {len(names) * len(phases)}): {', '.join(never)}")


def show_edges(edges: Counter[tuple[Phase, Event]]) -> None:
    """Print how often partitions took each edge of their life cycle."""
    known = [(phase, event) for phase, events in EDGES.items() for event in events]
    print("\nedges of the life cycle")
    for phase, event in known:
        print(f"{phase.value:10} {event.name.lower():17} {edges[phase, event]}")
    never = [f"{phase.value}/{event.name.lower()}" for phase, event in known if not edges[phase, event]]
    print(f"never ({len(never)} of {len(known)}): {', '.join(never)}")


if __name__ == "__main__":
    sys.exit(main())
