"""`script/bench all`: the benchmarks of a release, one after the other, each as it is run alone.

With `--record` it writes what came out to docs/figures.json, fills the tables of README.md and docs/, and draws the
chart. Let nothing else run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from script.generate import figures

from benchmarks import recording
from benchmarks.report import console, show

#: each benchmark with its arguments, in this order
PLAN: Final[Mapping[str, Sequence[str]]] = {
    "start": (),
    "throughput": ("--rounds", "5"),
    "restore": ("--rounds", "2"),
    "join": ("--records", "500000", "--rounds", "5"),
    "window": ("--records", "500000", "--rounds", "5"),
    "latency": ("--rounds", "1", "--seconds", "10"),
    "commit": (),
    "lanes": ("--partitions", "1,200", "--records", "8000000", "--rounds", "3"),
    "growth": (),
    "standby": ("--rounds", "2"),
    "sink": ("--rows", "300000"),
    "compact": ("--millions", "2,5,20,50"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `all`."""
    parser.add_argument("--only", default=",".join(PLAN), help="comma-separated: a part of the benchmarks")
    parser.add_argument("--record", action="store_true", help="write docs/figures.json, the tables and the chart")


def main(options: argparse.Namespace) -> int:
    """Run them; 1 when one failed. The others run all the same."""
    rows, failed = [], []
    for name in options.only.split(","):
        console.rule(f"{name} {' '.join(PLAN[name])}")
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "benchmarks", name, *PLAN[name]], check=False)
        minutes = f"{(time.monotonic() - began) / 60:.1f}"
        rows.append([name, minutes, "good" if done.returncode == 0 else f"failed with exit code {done.returncode}"])
        if done.returncode != 0:
            failed.append(name)
        elif options.record:
            recording.record(name)
    if options.record:
        figures.write()
    show("all benchmarks", ["", "minutes", ""], rows)
    return 1 if failed else 0
