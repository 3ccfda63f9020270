"""`script/chaos`: run the service under a seeded schedule of faults, and judge what it did.

docs/explanation/reliability.md has the results.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import structlog
from tests.chaos import calling, matrix, schedule, soak
from tests.chaos.arena import Shape
from tests.chaos.faults import REGISTRY
from tests.chaos.run import Result, run, versions
from tests.chaos.targets import TARGETS
from tests.chaos.try_mutants import try_all


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="script/chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="of the schedule and of the service's mode; random by default")
    parser.add_argument("--runs", type=int, default=1, help="the number of runs; the seeds count up")
    parser.add_argument("--minutes", type=float, default=2.0, help="of faults")
    parser.add_argument("--faults", help="codes, comma-separated, such as F1,F4,F18; --list names them")
    parser.add_argument("--list", action="store_true", help="name the faults, and end")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--rate", type=int, default=300, help="records per second")
    parser.add_argument("--failing", type=int, default=0, metavar="N", help="one record in N fails by design")
    parser.add_argument(
        "--calls", action="store_true", help="the service makes a call of an HTTP server for each record"
    )
    parser.add_argument("--inputs", type=int, choices=(1, 2), help="of the service; by the seed if not given")
    parser.add_argument("--rekeyed", action="store_true", help="trades move money between accounts of other partitions")
    parser.add_argument("--asked", action="store_true", help="three processes ask the service, and ask again")
    parser.add_argument("--target", choices=TARGETS, default="statehold")
    parser.add_argument("--directory", type=Path, help="where history and logs stay; else only those of a bad run do")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="break statehold on purpose; each must be caught")
    parser.add_argument("--matrix", action="store_true", help="F1 to F36 one by one, as far as they are built")
    parser.add_argument("--soak", action="store_true", help="a steady load with few faults: is anything growing?")
    parser.add_argument("--json", action="store_true", help="results as JSON, last of all")
    return parser


def main() -> int:
    """0: nothing was lost, doubled or changed in any run."""
    options = arguments().parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
    if options.list:
        for code, kind in REGISTRY.items():
            print(f"{code:5} {kind.title}{'' if kind.usual else ' (only when named)'}")
        return 0
    first = options.seed if options.seed is not None else random.randrange(1_000_000)
    if options.mutants is not None:
        return 0 if all(row["caught"] for row in try_all(first, options.mutants)) else 1
    if options.matrix:
        return run_matrix(options, first)
    if options.soak:
        return run_soak(options, first)
    results = [one_run(options, first + number) for number in range(options.runs)]
    if options.json:
        print(json.dumps({"versions": versions(), "runs": [result.plain() for result in results]}, indent=1))
    bad = [result for result in results if not result.good]
    for result in bad:
        print(f"again: script/chaos --seed {result.seed} --minutes {options.minutes} {' '.join(_given(options))}")
    return 1 if bad else 0


def run_matrix(options: argparse.Namespace, seed: int) -> int:
    """One short run or one call of pytest for each scenario; `--faults` chooses among them."""
    chosen = options.faults.split(",") if options.faults else list(matrix.MATRIX)
    rows: dict[str, dict[str, Any]] = {}
    for code in chosen:
        scenario = matrix.MATRIX[code]
        try:
            rows[code] = _row(options, seed, scenario)
        except Exception as error:  # noqa: BLE001  it is this row's failure alone
            rows[code] = {"good": False, "said": f"did not run: {type(error).__name__}: {error}"}
        print(f"{'good' if rows[code]['good'] else 'BAD '} {code:4} {scenario.title}: {rows[code]['said']}", flush=True)
    print(matrix.table(rows))
    if options.json:
        print(json.dumps({"versions": versions(), "seed": seed, "rows": rows}, indent=1))
    return 0 if all(row["good"] for row in rows.values()) else 1


def _row(options: argparse.Namespace, seed: int, scenario: matrix.Scenario) -> dict[str, Any]:
    if scenario.tests:
        return matrix.run_tests(scenario, seed)
    directory = Path(tempfile.mkdtemp(prefix="sh-matrix-"))
    if scenario.soak:
        result = soak.soak(seed, max(options.minutes, soak.SHORTEST), options.rate, directory)
    else:
        result = _played(options, seed, scenario, directory)
    figures = result.verdict.figures
    said = f"{figures['faults']} faults, {figures['records']} records, longest gap {figures['longest_gap']} s"
    if "dead_letters" in figures:
        said += f", {figures['dead_letters']} letters ({figures['followed']} followed), {figures['late']} handled late"
        said += f", {figures['paused']} paused a partition, {figures['stopped']} stopped the service"
    if result.good:
        shutil.rmtree(directory)
    return {"good": result.good, "said": said, "figures": figures, "findings": dict(result.verdict.findings)}


def _played(options: argparse.Namespace, seed: int, scenario: matrix.Scenario, directory: Path) -> Result:
    title, settings = schedule.mode(seed, failing=scenario.failing > 0)
    shape = Shape(scenario.brokers, 3, 6, options.rate, settings=settings, failing=scenario.failing)
    planned = schedule.plan(seed, options.minutes * 60, scenario.codes, shape)
    return run(shape, planned, directory, seed=seed, title=title)


def run_soak(options: argparse.Namespace, seed: int) -> int:
    """`--minutes` and `--rate` say how long and how much."""
    directory = options.directory or Path(tempfile.mkdtemp(prefix="sh-soak-"))
    result = soak.soak(seed, options.minutes, options.rate, directory)
    print(*soak.show(result), *result.verdict.lines(), sep="\n")
    return 0 if result.good else 1


def one_run(options: argparse.Namespace, seed: int) -> Result:
    """The shape, the schedule and the mode come from the options and the seed."""
    fails = options.failing > 0 or options.asked
    title, settings = schedule.mode(seed, failing=fails) if options.target == "statehold" else (options.target, {})
    several = options.target == "statehold" and not fails and not options.rekeyed
    inputs, more, order = schedule.inputs(seed) if several else (1, "", {})
    if options.inputs is not None and options.inputs != inputs:
        inputs, more, order = options.inputs, f", {options.inputs} inputs", {}
    if options.calls:
        inputs, more, order = 1, ", a call for each record", calling.SETTINGS
    if options.asked:
        more = ", asked"
    shape = Shape(
        options.brokers,
        options.workers,
        options.partitions,
        options.rate,
        target=options.target,
        settings=settings | order,
        failing=options.failing,
        inputs=inputs,
        calls=options.calls,
        rekeyed=options.rekeyed,
        askers=3 if options.asked else 0,
    )
    codes = options.faults.split(",") if options.faults else schedule.usual(shape)
    title += ", re-keying" if options.rekeyed else more
    planned = schedule.plan(seed, options.minutes * 60, codes, shape)
    if options.directory is not None:
        return run(shape, planned, options.directory / f"seed-{seed}", seed=seed, title=title)
    directory = Path(tempfile.mkdtemp(prefix="sh-chaos-"))
    result = run(shape, planned, directory, seed=seed, title=title)
    if result.good:
        shutil.rmtree(directory)
    else:
        print(f"history and logs: {directory}")
    return result


def _given(options: argparse.Namespace) -> list[str]:
    given = {"--faults": options.faults, "--brokers": options.brokers, "--workers": options.workers}
    given |= {"--failing": options.failing or None, "--inputs": options.inputs}
    given |= {"--partitions": options.partitions, "--rate": options.rate, "--target": options.target}
    words = [f"{name} {value}" for name, value in given.items() if value is not None]
    flags = {"--rekeyed": options.rekeyed, "--calls": options.calls, "--asked": options.asked}
    return [*words, *(name for name, chosen in flags.items() if chosen)]


if __name__ == "__main__":
    sys.exit(main())
