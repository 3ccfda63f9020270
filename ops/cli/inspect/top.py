"""`statehold top`: shows a running service on the whole screen."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict, deque
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from statehold.common.visible import visible
from statehold.errors import StartError
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.waiting import hush
from statehold.ops.cli.inspect.keyboard import Keyboard
from statehold.ops.reports.hot_keys import KeyBacklog
from statehold.ops.reports.top_model import PartitionRow, Sample, Watch

_COLOURS: Final = {"live": "green", "failed": "bold red", "nobody": "red", "assigned": "cyan"}
_BARS: Final = " ▁▂▃▄▅▆▇█"
_HISTORY: Final = 20
#: seconds after which the screen marks a sample as old
_LATE: Final = 5.0
_COLUMNS: Final = ("P", "phase", "instance", "position", "behind", "seconds", "records/s", "", "restore or cause")

_KEY_COLUMNS: Final = ("topic", "partition", "key", "records behind", "of the partition")


@with_subject
def top(
    about: Subject,
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, metavar="SECONDS", help="Take a sample this often.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one sample and exit.")] = False,
    hot_keys: Annotated[
        bool,
        typer.Option("--hot-keys", help="Print which keys the records have that wait in each partition, and exit."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Watch a service on the whole screen: owner, phase, lag and speed of each partition. Press q to quit.

    statehold top order_totals.app:service

    Members, positions and speed come from the group; phases and restores come from the instances: those of
    this machine by their sockets, others by the ops servers that they advertise (ops.advertised, ops.token).
    Without a terminal, or with --once or --json, it prints one sample.

    --hot-keys reads the records between the committed offsets and the ends of all inputs, at most 20,000 offsets
    of each partition, and prints each key that a tenth of a partition's backlog has.

    Exit code 0: shown; 1: the brokers do not answer.
    """
    watch = Watch(about.settings, about.names)
    if hot_keys:
        try:
            _print_keys(watch.keys(), about.names.group, as_json)
        finally:
            watch.close()
        return
    if not as_json and not once and sys.stdout.isatty():
        _live(watch, interval)
        return
    try:
        _once(watch.sample(), as_json)
    finally:
        watch.close()


def _once(sample: Sample, as_json: bool) -> None:
    if sample.trouble:
        raise StartError(f"connect: {sample.trouble}. Next: run `statehold doctor`")
    if as_json:
        output.print_json(sample)
    else:
        output.report(_summary(sample))
        output.print_table([head for head in _COLUMNS if head], [[*_figures(row), _doing(row)] for row in sample.rows])


def _print_keys(found: KeyBacklog, group: str, as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    rows = [
        (each.topic, each.partition, "(no key)" if each.key is None else each.key, each.records, f"{each.share:.1%}")
        for each in found.keys
    ]
    output.print_table(_KEY_COLUMNS, rows)
    how = " as a sample" if found.sampled else ""
    output.report(
        f"{group}: {found.behind} offsets behind, {found.read} records read{how}; {len(rows)} keys with a tenth "
        f"or more of a partition's backlog"
    )


def _live(watch: Watch, interval: float) -> None:
    hush()
    screen, console, looking = Screen(), Console(highlight=False), Looking(watch, interval)
    with Keyboard() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen.of(looking.newest()), refresh=True)
            if keys.wait(interval) in ("q", "Q", "\x1b"):
                return


class Looking:
    """Takes samples on its own thread, so that the screen and `q` work while brokers do not answer."""

    def __init__(self, watch: Watch, interval: float) -> None:
        self._watch, self._interval = watch, interval
        self._sample = watch.first()
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="looking", daemon=True).start()

    def newest(self) -> Sample:
        """Return the newest sample; raise the error that ended sampling."""
        if self._error is not None:
            raise self._error
        return self._sample

    def _run(self) -> None:
        try:
            while True:
                self._sample = self._watch.sample()
                time.sleep(self._interval)
        except BaseException as error:  # noqa: BLE001  raised in the user's thread
            self._error = error


class Screen:
    """Draws samples; remembers the newest speeds of each partition."""

    def __init__(self) -> None:
        self._speeds: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_HISTORY))
        self._last: Sample | None = None

    def of(self, sample: Sample) -> RenderableType:
        """Draw a sample; after a failed one, keep the last good one and show the reason."""
        if not sample.trouble and sample is not self._last:
            self._last = sample
            for row in sample.rows:
                self._speeds[row.partition].append(row.speed)
        shown = self._last or sample
        return Group(self._head(shown, sample), self._table(shown))

    def _head(self, shown: Sample, newest: Sample) -> Text:
        age = time.time() - newest.time
        head = Text.assemble((shown.service, "bold"), f"{_summary(shown).removeprefix(shown.service)}   q: end")
        if newest.trouble or age > _LATE:
            waits = newest.trouble or f"the brokers have not answered for {age:.0f} s"
            head.append(f"\n{waits}", "bold red")
        return head

    def _table(self, sample: Sample) -> Table:
        long = ("instance", "", "restore or cause")
        columns = [Column(head, no_wrap=head not in long) for head in _COLUMNS]
        table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
        for row in sample.rows:
            cells = _figures(row)
            cells[2] = Text(visible(row.owner or "-"), overflow="ellipsis", no_wrap=True)
            speeds = Text(_sparkline(self._speeds[row.partition]), "green", overflow="crop", no_wrap=True)
            table.add_row(*cells, speeds, Text(visible(_doing(row)), "yellow", overflow="ellipsis", no_wrap=True))
        return table


def _summary(sample: Sample) -> str:
    moment = datetime.fromtimestamp(sample.time, UTC).strftime("%H:%M:%SZ")
    live = sum(row.phase == "live" for row in sample.rows)
    return (
        f"{sample.service} reads {sample.input}   {moment}   group {sample.state or 'unknown'}, "
        f"{len(sample.members)} member(s)   {live} of {len(sample.rows)} live   {sample.behind} behind   "
        f"{sample.speed:.0f} records/s"
    )


def _figures(row: PartitionRow) -> list[str | Text]:
    """Return the cells of a partition before its speeds."""
    return [
        str(row.partition),
        Text(visible(row.phase), _COLOURS.get(row.phase, "yellow")),
        row.owner or "-",
        "-" if row.lag.position is None else str(row.lag.position),
        str(row.lag.records),
        f"{row.lag.seconds:.1f}",
        f"{row.speed:.0f}",
    ]


def _doing(row: PartitionRow) -> str:
    if row.restore is not None:
        done = round(10 * row.restore["share"])
        return (
            f"{row.restore['step']} {'█' * done}{'░' * (10 - done)} {row.restore['position']} of {row.restore['end']}"
        )
    return row.cause or ""


def _sparkline(speeds: deque[float]) -> str:
    most = max(speeds, default=0.0)
    return "".join(_BARS[round(8 * each / most) if most else 0] for each in speeds)
