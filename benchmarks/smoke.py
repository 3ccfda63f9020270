"""`script/bench smoke`: instructions per record of the engine, against the last recorded commit; more than 3 % fail.

It needs no broker and no quiet machine: callgrind counts instructions, which are the same however busy the machine is.
Without valgrind it compares processor time, which needs a quiet one. Counts of another Python, other packages or
another processor say nothing, so the recorded commit is measured again here, unless its figures were made in this
environment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.report import BUILD, console, show
from benchmarks.smoke_work import RECORDS, WORKS

ROOT: Final = Path(__file__).parent.parent
RECORDED: Final = Path(__file__).parent / "smoke.json"
#: the most that a change may cost
LIMIT: Final = 1.03
#: instructions that a record takes at the least, so that a count of something else is noticed
_LEAST: Final = 5_000
#: seconds for all works, on a busy machine
_PATIENCE: Final = 1_200.0
#: the function of C behind `eval` and `exec` of text
_COUNTED: Final = "PyRun_StringFlags"
_TOTAL: Final = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


class Measured(msgspec.Struct, frozen=True):
    """The cost of a record in each work, and what it depends on."""

    commit: str
    environment: str
    unit: str
    costs: dict[str, float]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `smoke`."""
    parser.add_argument("--record", action="store_true", help="write benchmarks/smoke.json for the present commit")
    parser.add_argument("--against", metavar="COMMIT", default="", help="compare with this commit")
    parser.add_argument("--seconds", action="store_true", help="compare processor time even if valgrind is installed")


def main(options: argparse.Namespace) -> int:
    """Run it; 1 when a work costs too much more than before."""
    counting = shutil.which("valgrind") is not None and not options.seconds
    if not counting:
        console.print("processor time, not instructions (valgrind counts them): only on a quiet machine")
    if options.record and _git("status", "--porcelain", "--", "src", "benchmarks"):
        console.print("the tree differs from its commit. Next: commit, then record")
        return 2
    if not (options.record or options.against or RECORDED.exists()):
        console.print("nothing is recorded. Next: script/bench smoke --record")
        return 2
    now = Measured(_git("rev-parse", "HEAD"), environment(), _unit(counting=counting), measure(ROOT, counting=counting))
    if options.record:
        RECORDED.write_bytes(msgspec.json.format(msgspec.json.encode(now), indent=2) + b"\n")
        console.print(f"{RECORDED.relative_to(ROOT)}  {now.commit[:8]}")
        return 0
    return report(before(options.against, now), now)


def before(commit: str, now: Measured) -> Measured:
    """Return the figures to compare with: those of a commit, or of the recorded one."""
    commit = _git("rev-parse", commit) if commit else _known(RECORDED)[0].commit
    kept = BUILD / f"smoke-{commit[:12]}.json"
    for each in (*_known(RECORDED), *_known(kept)):
        if (each.commit, each.environment, each.unit) == (commit, now.environment, now.unit):
            return each
    console.print(f"measuring {commit[:8]} here")
    with tempfile.TemporaryDirectory(prefix="statehold-smoke-") as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        costs = measure(Path(folder), counting=now.unit == _unit(counting=True))
    found = Measured(commit, now.environment, now.unit, costs)
    BUILD.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(msgspec.json.encode(found))
    return found


def _known(file: Path) -> list[Measured]:
    return [msgspec.json.decode(file.read_bytes(), type=Measured)] if file.exists() else []


def measure(tree: Path, *, counting: bool) -> dict[str, float]:
    """Return the cost of a record in each work, by the sources of `tree` and the works of this one."""
    with tempfile.TemporaryDirectory(prefix="statehold-smoke-") as folder:
        works = Path(folder) / "works"
        shutil.copytree(Path(__file__).parent, works / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
        python = [sys.executable, "-m", "benchmarks.smoke_work"]
        before = [
            "valgrind",
            "--tool=callgrind",
            "--collect-atstart=no",
            f"--toggle-collect={_COUNTED}",
            f"--dump-after={_COUNTED}",
            f"--callgrind-out-file={folder}/count",
        ]
        done = subprocess.run(
            [*before, *python, "--once"] if counting else python,
            cwd=folder,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{works}{os.pathsep}{tree / 'src'}"},
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the works failed: {done.stderr[-2000:]}")
        if not counting:
            return {name: each * 1e6 / RECORDS for name, each in json.loads(done.stdout).items()}
        return counted(Path(folder))


def counted(folder: Path) -> dict[str, float]:
    """Read what callgrind has dumped after each `eval`: the works are the largest, in their order.

    :raises RuntimeError: this Python has no such function.
    """
    files = {int(file.suffix[1:]): file.read_text(encoding="utf-8") for file in folder.glob("count.*")}
    found = [(int(totals[1]), number) for number, text in files.items() if (totals := _TOTAL.search(text))]
    largest = sorted(found, reverse=True)[: len(WORKS)]
    if len(largest) < len(WORKS) or largest[-1][0] < RECORDS * _LEAST:
        raise RuntimeError(f"callgrind has not found {_COUNTED} of this Python. Next: script/bench smoke --seconds")
    in_order = sorted(largest, key=lambda each: each[1])
    return {name: count / RECORDS for name, (count, _) in zip(WORKS, in_order, strict=True)}


def report(old: Measured, now: Measured) -> int:
    """Show both; 1 when a work costs too much more."""
    rows, wrong = [], 0
    for name, cost in now.costs.items():
        if name not in old.costs:
            rows.append([name, "-", f"{cost:,.1f}", "new"])
            continue
        ratio = cost / old.costs[name]
        wrong += ratio > LIMIT
        rows.append([name, f"{old.costs[name]:,.1f}", f"{cost:,.1f}", f"{(ratio - 1) * 100:+.2f} %"])
    show(f"{now.unit} against {old.commit[:8]}", ["work", "before", "now", "change"], rows)
    if wrong:
        console.print(f"{wrong} of {len(rows)} cost more than {(LIMIT - 1) * 100:.0f} % more than before")
    return 1 if wrong else 0


def environment() -> str:
    """Return what the counts depend on besides the sources: machine, interpreter, installed packages."""
    packages = sorted(f"{each.name} {each.version}" for each in distributions())
    version = f"{platform.python_implementation()} {platform.python_version()} {' '.join(platform.python_build())}"
    return hashlib.sha256(f"{platform.machine()} {_processor()} {version} {packages}".encode()).hexdigest()[:16]


def _processor() -> str:
    """Return the name of the processor, because the C library chooses its functions by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), "")


def _unit(*, counting: bool) -> str:
    return "instructions per record" if counting else "processor seconds per million records"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
