"""Shows a bar for each partition that restores or replays, below the log lines of `statehold run`."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any, Final, Self, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from statehold.config.common.units import shown_size

_REFRESH: Final = 0.2

Partitions = Callable[[], list[dict[str, Any]]]


class Bars:
    """`with Bars(...)` reads the partitions five times a second, on its own thread.

    `lines` is the stream for log lines, which puts them above the bars.
    """

    def __init__(self, partitions: Partitions, terminal: TextIO) -> None:
        self._partitions = partitions
        console = Console(file=terminal)
        self._progress = Progress(
            TextColumn("partition {task.fields[partition]}"),
            TextColumn("{task.fields[step]:13}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._tasks: dict[int, TaskID] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="bars", daemon=True)
        self.lines = cast("TextIO", _Above(self._progress, terminal))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._show([])

    def _watch(self) -> None:
        while not self._over.wait(_REFRESH):
            self._show([each for each in self._partitions() if each.get("restore")])

    def _show(self, restoring: list[dict[str, Any]]) -> None:
        for gone in self._tasks.keys() - {each["partition"] for each in restoring}:
            self._progress.remove_task(self._tasks.pop(gone))
        for each in restoring:
            self._update(each["partition"], each["restore"])
        if self._tasks:
            self._progress.start()
            self._progress.refresh()
        else:
            self._progress.stop()

    def _update(self, partition: int, view: dict[str, Any]) -> None:
        if partition not in self._tasks:
            self._tasks[partition] = self._progress.add_task("", partition=partition, step="", figures="")
        total = view["end"] - view["begin"]
        self._progress.update(
            self._tasks[partition],
            total=total if total > 0 else None,
            completed=view["position"] - view["begin"],
            step=view["step"],
            figures=figures(view),
        )


def figures(view: dict[str, Any]) -> str:
    """Return the text next to a bar: bytes, speed, keys, time left."""
    left = "" if view["left"] is None else f", {view['left']:.0f} s left"
    speed = shown_size(view["bytes_per_second"])
    return f"{shown_size(view['bytes'])}, {speed}/s, {view['keys']:,} keys{left}"


class _Above(io.TextIOBase):
    """The terminal as a stream; rich prints what is written above its bars."""

    def __init__(self, progress: Progress, terminal: TextIO) -> None:
        self._progress, self._terminal = progress, terminal

    def write(self, text: str) -> int:
        if self._progress.live.is_started:
            self._progress.console.print(Text.from_ansi(text.rstrip("\n")), soft_wrap=True)
        else:
            self._terminal.write(text)
        return len(text)

    def flush(self) -> None:
        self._terminal.flush()

    def isatty(self) -> bool:
        return self._terminal.isatty()
