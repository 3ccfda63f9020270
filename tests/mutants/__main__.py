"""Plants one defect after the other in a copy of the tree, and runs random schedules until one fails.

python -m tests.mutants [NAME ...] --count 400
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "config", "balancer", "worker", "snapshot", "ops", "tests/simulation")


class Mutant(NamedTuple):
    """One defect."""

    name: str
    file: str
    old: str
    new: str
    breaks: str


class Hunt(NamedTuple):
    """Whether schedules found a mutant: the number of the first, or None, and what failed."""

    mutant: Mutant
    schedules: int | None
    why: str


def mutants() -> list[Mutant]:
    found = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        found.append(Mutant(path.stem, values["file"], values["old"], values["new"], values["breaks"]))
    return found


def planted(mutant: Mutant, tree: Path) -> Path:
    """Copy the sources to `tree` with this defect. :raises ValueError: its text is not there exactly once."""
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "tests" / "__init__.py").touch()
    path = tree / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} has the text {text.count(mutant.old)} times")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return tree


def hunt(mutant: Mutant, count: int) -> Hunt:
    """Run up to `count` random schedules against the mutant."""
    with tempfile.TemporaryDirectory(prefix="statehold-mutant-") as folder:
        tree = planted(mutant, Path(folder))
        environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--count", str(count), "--stop"],
            cwd=tree,
            env=environment,
            text=True,
            capture_output=True,
            check=False,
        )
    found = re.search(r"^seed (\d+) .*", done.stdout, re.MULTILINE)
    if found is None:
        crashed = done.returncode not in (0, 1)
        return Hunt(mutant, 0 if crashed else None, done.stderr.strip().splitlines()[-1] if crashed else "")
    return Hunt(mutant, int(found[1]) + 1, found[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--count", type=int, default=400)
    options = parser.parse_args()
    chosen = [each for each in mutants() if not options.names or each.name in options.names]
    survivors = 0
    for mutant in chosen:
        result = hunt(mutant, options.count)
        survivors += result.schedules is None
        shown = "SURVIVED" if result.schedules is None else f"after {result.schedules}"
        print(f"{mutant.name:34} {shown:12} {result.why[:160]}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} found within {options.count} schedules")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
