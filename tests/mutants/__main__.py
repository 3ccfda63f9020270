"""Plants one defect after the other in a copy of the tree, and runs the tests of its group and random schedules.

python -m tests.mutants [NAME, GROUP or RULE ...] --jobs 2
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
#: by what each mutant was caught, as `--record` wrote it
CAUGHT: Final = HERE / "caught.json"
#: seconds for one run of tests or schedules; a mutant that takes longer hangs
LIMIT: Final = 400.0
FOLDERS: Final = (
    "src",
    "config",
    "balancer",
    "worker",
    "snapshot",
    "ops",
    "deploy",
    "tests",
    "examples",
    "benchmarks",
    "script",
    "docs",
)
#: tests without a broker
SUITES: Final = ("tests/driver", "tests/unit", "tests/worker", "tests/golden")
#: caught by a test or a schedule that does not end
HANG: Final = "hangs"
#: runs in progress, each a process group of its own
RUNNING: Final[set[int]] = set()
ended: Final = threading.Event()
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", re.MULTILINE)
_SEED: Final = re.compile(r"^seed (\d+) \((.*?)\)", re.MULTILINE)


class Mutant(NamedTuple):
    """One defect against a rule of docs/design.md: `file` has `old` once, and gets `new`.

    `tests`: those of its group, which run first.
    """

    group: str
    tests: tuple[str, ...]
    name: str
    rule: str
    breaks: str
    file: str
    old: str
    new: str


class Hunt(NamedTuple):
    """What caught a mutant: a test or a scenario, and after how many schedules; '': nothing did."""

    mutant: Mutant
    by: str
    schedules: int = 0

    def shown(self) -> str:
        after = f" after {self.schedules} schedules" if self.schedules else ""
        return f"{self.mutant.group:9}{self.mutant.name:36} {self.by or 'SURVIVED'}{after}"


def mutants() -> list[Mutant]:
    """Return all mutants, in the order of their groups and files."""
    found = []
    for path in sorted(HERE.glob("*.toml")):
        group = tomllib.loads(path.read_text(encoding="utf-8"))
        found += [Mutant(path.stem, tuple(group["tests"]), **each) for each in group["mutant"]]
    return found


def planted(mutant: Mutant, tree: Path) -> None:
    """Link the sources and tests into `tree`, and write the file with this defect.

    :raises ValueError: its text is not there exactly once.
    """
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=ignored, copy_function=os.link)
    shutil.copy(ROOT / "pyproject.toml", tree)
    path = tree / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} has the text {text.count(mutant.old)} times")
    path.unlink()  # a link to the source
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def hunt(mutant: Mutant, count: int, hint: str, *, quick: bool) -> Hunt:
    """Run what caught it before, the tests of its group, up to `count` schedules, and unless `quick` all tests."""
    with tempfile.TemporaryDirectory(prefix="statehold-mutant-") as folder:
        planted(mutant, Path(folder))
        if "::" in hint and (by := _test(folder, hint)):
            return Hunt(mutant, by)
        if not hint.startswith("simulation") and (by := _test(folder, *mutant.tests)):
            return Hunt(mutant, by)
        if (found := _simulate(mutant, folder, count)).by or quick:
            return found
        return Hunt(mutant, _test(folder, *SUITES))


def _test(tree: str, *what: str) -> str:
    """Return the first test that fails; '' if none does."""
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "--hypothesis-profile", "mutants"]
    options += ["-m", "not kafka and not spark", "--timeout", "60"]
    options += ["--ignore", "tests/driver/test_interleavings.py"]  # it tests how examples become short
    output = run_in(tree, "-m", "pytest", *options, *what)
    if output is None or "Timeout +++" in output:
        return HANG
    found = _FAILED.search(output)
    return found[1] if found is not None else ""


def _simulate(mutant: Mutant, tree: str, count: int) -> Hunt:
    output = run_in(tree, "-m", "tests.simulation", "--count", str(count), "--stop")
    if output is None:
        return Hunt(mutant, HANG)
    if (found := _SEED.search(output)) is not None:
        return Hunt(mutant, f"simulation: {found[2]}", int(found[1]) + 1)
    return Hunt(mutant, "" if f"{count} schedules, 0 violations" in output else "simulation crashes")


def run_in(tree: str, *arguments: str) -> str | None:
    """Return the output; None when it takes too long. Raises SystemExit when the program ends."""
    path = f"{tree}/src:{tree}"
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "STATEHOLD_SEED": "1"}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=tree,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    RUNNING.add(process.pid)
    try:
        if ended.is_set():  # the signal may have come before the line above
            os.killpg(process.pid, 9)
        output = process.communicate(timeout=LIMIT)[0]
        if ended.is_set():
            raise SystemExit(1)
        return output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return None
    finally:
        RUNNING.discard(process.pid)


def end(number: int, frame: object) -> None:
    """End all runs, and the program with them; a signal handler."""
    ended.set()
    for group in RUNNING.copy():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, 9)
    sys.exit(128 + number)


def main() -> int:
    """Return 1 if a mutant survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--count", type=int, default=2000, help="schedules for each mutant")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="only the tests of its group, and schedules")
    parser.add_argument("--missing", action="store_true", help="only those that caught.json does not name")
    parser.add_argument("--record", action="store_true", help="write what caught each mutant to caught.json")
    options = parser.parse_args()
    known = json.loads(CAUGHT.read_text(encoding="utf-8")) if CAUGHT.exists() else {}
    chosen = [
        each for each in mutants() if not options.names or {each.name, each.group, each.rule} & set(options.names)
    ]
    if options.missing:
        chosen = [each for each in chosen if each.name not in known]
    survivors = 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    with ThreadPoolExecutor(options.jobs) as pool, contextlib.ExitStack() as at_end:
        at_end.callback(pool.shutdown, wait=False, cancel_futures=True)
        waiting = [
            pool.submit(hunt, mutant, options.count, known.get(mutant.name, {}).get("by", ""), quick=options.quick)
            for mutant in chosen
        ]
        for each in as_completed(waiting):
            found = each.result()
            survivors += not found.by
            print(found.shown(), flush=True)
            if found.by:
                known[found.mutant.name] = {"by": found.by, "schedules": found.schedules}
            else:
                known.pop(found.mutant.name, None)
            if options.record:
                CAUGHT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
