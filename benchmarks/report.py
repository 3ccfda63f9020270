"""A table for people and build/bench/NAME.json for machines: a list of {name, value, unit}."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

BUILD = Path(__file__).parent.parent / "build" / "bench"


def fill_console() -> Console:
    """Return a console wide enough for the tables even without a terminal."""
    return Console(width=None if Console().is_terminal else 110, highlight=False)


console = fill_console()


@dataclass
class Figures:
    """Collects figures in order."""

    name: str
    values: list[dict[str, object]] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str, runs: Sequence[float] = ()) -> None:
        """Add one figure, rounded to four significant digits, for more would be noise.

        `runs`: the results of all rounds, of which `value` is the median.
        """
        figure: dict[str, object] = {"name": name, "value": _rounded(value), "unit": unit}
        if runs:
            figure |= {"lowest": _rounded(min(runs)), "highest": _rounded(max(runs)), "rounds": len(runs)}
        self.values.append(figure)

    def write(self) -> Path:
        """Write the figures with what they depend on; return the file."""
        BUILD.mkdir(parents=True, exist_ok=True)
        target = BUILD / f"{self.name}.json"
        target.write_text(json.dumps(self.values, indent=1) + "\n", encoding="utf-8")
        console.print(f"{target.relative_to(BUILD.parent.parent)}  [dim]{machine()}[/dim]")
        return target


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def machine() -> str:
    """Say what a figure depends on: cores, Python, client."""
    cores = os.cpu_count()
    return f"{cores} cores, Python {platform.python_version()}, confluent-kafka {version('confluent-kafka')}"


def show(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table; the first column is text, the others are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2))
    for index, head in enumerate(heads):
        table.add_column(head, justify="left" if index == 0 else "right", header_style="dim")
    for row in rows:
        table.add_row(*row)
    console.print()
    console.print(table)
    console.print()


def rate_text(runs: Sequence[float]) -> str:
    """Return the median of rates as text; 0 is the rate of a run that was too short for one."""
    known = [rate for rate in runs if rate]
    return f"{statistics.median(known):,.0f}" if known else "-"


def spread_text(runs: Sequence[float]) -> str:
    """Return lowest and highest rate as text."""
    known = [rate for rate in runs if rate]
    return f"{min(known):,.0f}-{max(known):,.0f}" if known else "-"
