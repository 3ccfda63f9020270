"""Prints the demo's steps and measurements as text and tables."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from examples.clearing.verify import Verdict
from examples.running import LogEvent

COLUMNS = (
    *("partition", "assigned", "fenced", "restored", "live"),
    *("full", "deltas", "keys", "bytes", "replayed"),
)
WIDTH = 100
"""Characters per line if the output is a file."""


@dataclass(frozen=True)
class Takeover:
    """Takeover of one partition; times are seconds after the kill."""

    partition: int
    assigned: float
    fenced: float
    restored: float
    live: float
    keys: int
    deltas: int
    bytes: int
    full: str
    replayed: int


def takeover(partition: int, events: Sequence[LogEvent], killed: float) -> Takeover:
    """Read one partition's takeover from the new owner's log. LookupError names the phase that is missing."""

    def phase(name: str) -> LogEvent:
        for event in events:
            concerned = event.partition == partition or partition in event.fields.get("partitions", ())
            if event.name == name and concerned and event.time >= killed:
                return event
        raise LookupError(f"partition {partition}: the log has no {name!r} after the kill")

    restored = phase("restored").fields
    full = restored.get("full")
    return Takeover(
        partition=partition,
        assigned=phase("assigned").time - killed,
        fenced=phase("predecessor_fenced").time - killed,
        restored=phase("restored").time - killed,
        live=phase("live").time - killed,
        keys=restored["keys"],
        deltas=restored["deltas"],
        bytes=restored.get("bytes", 0),
        full="none" if full is None else f"@{full}",
        replayed=phase("replayed").fields["records"],
    )


class Report:
    """Prints the demo's report to a terminal or a file."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
        self._began = monotonic()

    def title(self, text: str) -> None:
        """Print a heading."""
        self.console.rule(f"[bold]{text}", align="left")

    def step(self, what: str, detail: str = "") -> None:
        """Print one step with the time since the demo began."""
        elapsed = monotonic() - self._began
        self.console.print(f"[dim]{elapsed:5.1f} s[/]  [bold]{what:<10}[/] {detail}", soft_wrap=True)

    def takeovers(self, title: str, rows: Sequence[Takeover]) -> None:
        """Print the phases of every moved partition; `title` names the event from which seconds are counted."""
        table = Table(title=title, title_justify="left", box=None)
        for column in COLUMNS:
            table.add_column(column, justify="right")
        for row in rows:
            times = (f"{each:.2f}" for each in (row.assigned, row.fenced, row.restored, row.live))
            counts = (f"{each:,}" for each in (row.deltas, row.keys, row.bytes, row.replayed))
            table.add_row(str(row.partition), *times, row.full, *counts)
        self.console.print(table)

    def compaction(self, outcomes: Sequence[Mapping[str, Any]]) -> None:
        """Print the result of `statehold compact --json` for each partition."""
        title = "compacted: what a restore reads, before and after"
        table = Table(title=title, title_justify="left", box=None)
        for column in ("partition", "result", "full", "keys", "bytes before", "bytes after", "digest"):
            table.add_column(column, justify="right")
        for each in outcomes:
            sizes = (f"{each[name] or 0:,}" for name in ("keys", "bytes_before", "bytes_after"))
            proven = "[green]equal[/]" if each["proven"] else "[red]not equal[/]"
            table.add_row(str(each["partition"]), each["status"], f"@{each['full']}", *sizes, proven)
        self.console.print(table)

    def verdict(self, verdict: Verdict) -> None:
        """Print the independent verifier's result by topic."""
        table = Table(title="recomputed from the input, compared", title_justify="left", box=None)
        table.add_column("")
        for column in ("expected", "found", "lost", "duplicated", "out of order", "different"):
            table.add_column(column, justify="right")
        for each in verdict.findings:
            wrong = (each.lost, each.duplicated, each.reordered, each.different + each.foreign)
            table.add_row(each.name, f"{each.expected:,}", f"{each.seen:,}", *(f"{count:,}" for count in wrong))
        self.console.print(table)
        colour = "green" if verdict.ok else "red"
        self.console.print(
            f"[bold {colour}]{verdict.lost} lost, {verdict.duplicated} duplicated[/], "
            f"digests equal in {verdict.digests_equal} of {verdict.digests} partitions"
        )
        for each in verdict.findings:
            if each.first:
                self.console.print(f"[red]first difference:[/] {escape(each.first)}")

    def failure(self, error: BaseException, logs: Mapping[str, str]) -> None:
        """Print the error after the end of each process's log."""
        for name, text in logs.items():
            self.title(f"the end of {name}'s log")
            self.console.print(escape(text) or "(empty)", soft_wrap=True)
        self.console.print(f"[bold red]demo failed:[/] {type(error).__name__}: {escape(str(error))}")
