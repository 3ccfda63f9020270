"""`script/bench start`: seconds until the commands answer, of an installed package as a user has it."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.report import Figures, show

ROOT: Final = Path(__file__).parent.parent
#: what is started -> its arguments
STARTED: Final = {
    "--version": ("--version",),
    "--help": ("--help",),
    "run, first log line": ("run", "totals:service", "--profile", "development"),
}
SERVICE: Final = """
from statehold import Handler, Output, Record, Service, Table


class Totals(Handler[int]):
    totals = Table(key=str, value=int)
    sums = Output("sums", value=int)

    def on_record(self, record: Record[int]) -> None:
        self.sums.send(record.value)


service = Service("totals", input="paid", handler=Totals)
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `start`."""
    parser.add_argument("--rounds", type=int, default=7)


def main(options: argparse.Namespace) -> int:
    """Run it."""
    seconds: dict[str, list[float]] = {name: [] for name in STARTED}
    with tempfile.TemporaryDirectory(prefix="sh-") as directory:
        folder = Path(directory)
        (folder / "totals.py").write_text(SERVICE)
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
        subprocess.run([folder / "env" / "bin" / "pip", "install", "--quiet", f"{ROOT}[cli]"], check=True)
        for number in range(options.rounds + 1):
            for name, given in STARTED.items():
                took = _until_first_line([str(folder / "env" / "bin" / "statehold"), *given], folder)
                if number:  # the first start fills the caches of the system
                    seconds[name].append(took)
    figures = Figures("start")
    for name, each in seconds.items():
        figures.add(name, statistics.median(each), "s", each)
    rows = [
        [name, f"{statistics.median(each):.2f}", f"{min(each):.2f}-{max(each):.2f}"] for name, each in seconds.items()
    ]
    show("seconds until the first line, of an installed package", ["", "median", "lowest-highest"], rows)
    figures.write()
    return 0


def _until_first_line(command: list[str], folder: Path) -> float:
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        took = time.perf_counter() - began
        process.terminate()  # so that it removes its control socket
    return took
