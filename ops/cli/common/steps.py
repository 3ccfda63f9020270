"""Shows the steps of a long job: as bars with progress on a terminal, as lines otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

_REFRESH: Final = 0.25

#: number of tasks done, and number of known tasks
Tasks = Callable[[], tuple[int, int]]


class Steps:
    """`with Steps(console) as steps`: a new step ends the previous one. Any thread may start one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
        )
        self._step: TaskID | None = None
        self._tasks: Tasks | None = None
        #: tasks at the start of the step, and at the last look
        self._before = self._seen = (0, 0)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="steps", daemon=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._progress.start()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._over.set()
            self._thread.join()
            with self._lock:
                self._finish(whole=error is None)
            self._progress.stop()

    def report(self, step: str) -> None:
        """Start a step."""
        if not self._console.is_terminal:
            self._console.print(Text(step, "dim"))
            return
        with self._lock:
            self._finish(whole=True)
            self._step = self._progress.add_task(step, total=None, figures="")

    def watch(self, tasks: Tasks | None) -> None:
        """Set the function that returns the progress of a step, a few times a second; None: stop asking.

        Its counts continue from step to step, so a bar starts where the previous one ended.
        """
        with self._lock:
            self._tasks = tasks

    def _finish(self, *, whole: bool) -> None:
        if self._step is None:
            return
        if whole:
            self._progress.update(self._step, total=1, completed=1, figures="")
        self._progress.stop_task(self._step)
        self._progress.refresh()
        self._step, self._before = None, self._seen

    def _watch(self) -> None:
        while not self._over.wait(_REFRESH):
            tasks = self._tasks
            seen = self._seen
            try:
                seen = tasks() if tasks is not None else seen
            except Exception:  # noqa: BLE001 - the session ends while it is asked
                with self._lock:
                    self._tasks = None if self._tasks is tasks else self._tasks
            with self._lock:
                self._seen = seen
                self._show()

    def _show(self) -> None:
        if self._step is not None:
            done, total = (now - then for now, then in zip(self._seen, self._before, strict=True))
            if total > 0:
                self._progress.update(self._step, total=total, completed=done, figures=f"{done} of {total} tasks")
        self._progress.refresh()
