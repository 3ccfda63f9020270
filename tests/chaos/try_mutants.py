"""Runs the mutants: `script/chaos --mutants`."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from tests.chaos.catching import CATCHES
from tests.chaos.run import RECOVERY, Result, run

TRIES = 3


def try_one(mutant: str, seed: int, *, broken: bool = True) -> Result:
    """The schedule that catches this mutant, with it or without it."""
    catch = CATCHES[mutant]
    directory = Path(tempfile.mkdtemp(prefix="sh-mutant-"))
    title = f"mutant {mutant}" if broken else f"schedule of {mutant}, not broken"
    try:
        shape, recovery = catch.shape(mutant if broken else ""), 30.0 if broken else RECOVERY
        return run(shape, catch.plan(seed), directory, seed=seed, title=title, recovery=recovery)
    finally:
        if os.environ.get("KEEP"):
            print(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def caught(mutant: str, result: Result) -> list[str]:
    """The anomalies by which it showed."""
    return sorted(CATCHES[mutant].anomalies & {name for name, texts in result.verdict.findings.items() if texts})


def hunt(mutant: str, seed: int) -> tuple[int, list[str]]:
    """The seed that caught it, and by what; some need a moment that not every run hits, so other seeds are tried."""
    for number in range(seed, seed + TRIES):
        if by := caught(mutant, try_one(mutant, number)):
            return number, by
    return seed, []


def try_all(seed: int, names: list[str]) -> list[dict[str, object]]:
    """Each mutant once; one line each."""
    table: list[dict[str, object]] = []
    for mutant in names or CATCHES:
        used, by = hunt(mutant, seed)
        table.append({"mutant": mutant, "seed": used, "caught": bool(by), "by": by})
        print(f"{'caught ' if by else 'MISSED '} {mutant:20} {', '.join(by)}", flush=True)
    return table
