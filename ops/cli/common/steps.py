"""The steps of a long job on a terminal: a bar for each, and what is done of it; without a terminal a line for each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

_REFRESH: Final = 0.25

#: how many tasks are done, of how many that are known of
Tasks = Callable[[], tuple[int, int]]


class Steps:
    """`with Steps(console) as steps`: `tell` begins a step and ends the one before. Any thread may tell."""

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
        #: what the tasks were when the step began, and when they were last asked for
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

    def tell(self, step: str) -> None:
        """What is done from now on."""
        if not self._console.is_terminal:
            self._console.print(Text(step, "dim"))
            return
        with self._lock:
            self._finish(whole=True)
            self._step = self._progress.add_task(step, total=None, figures="")

    def watch(self, tasks: Tasks | None) -> None:
        """Whom to ask how far a step has come, a few times a second; None: nobody any more.

        Its counts go on from step to step, so a bar begins where the one before ended.
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
