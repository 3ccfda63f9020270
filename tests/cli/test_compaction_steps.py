"""The steps of a compaction: bars on a terminal, lines otherwise."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable

from rich.console import Console

from statehold.ops.cli.common.steps import Steps

PATIENCE = 60.0


def console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, force_terminal=terminal, width=120, highlight=False), text


def await_text(text: io.StringIO, wanted: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while wanted not in text.getvalue():
        assert time.monotonic() < deadline, text.getvalue()[-2000:]
        time.sleep(0.05)


def counting(*seen: tuple[int, int]) -> Callable[[], tuple[int, int]]:
    """Returns these one after the other, and then always the last."""
    left = list(seen)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_without_a_terminal_each_step_is_a_line() -> None:
    plain, text = console(terminal=False)
    with Steps(plain) as steps:
        steps.report("planning 2 partitions")
        steps.watch(counting((1, 4)))
        steps.report("folding 2 partitions")
    assert text.getvalue() == "planning 2 partitions\nfolding 2 partitions\n"


def test_a_bar_counts_the_tasks_of_its_own_step() -> None:
    screen, text = console(terminal=True)
    with Steps(screen) as steps:
        steps.report("folding 2 partitions")
        steps.watch(counting((0, 0), (3, 10)))
        await_text(text, "3 of 10 tasks")
        steps.watch(counting((3, 10), (10, 10)))
        await_text(text, "10 of 10 tasks")
        steps.report("reading 2 snapshots back")
        steps.watch(counting((11, 14)))
        await_text(text, "1 of 4 tasks")
    shown = text.getvalue()
    assert "folding 2 partitions" in shown
    assert "reading 2 snapshots back" in shown


def test_a_session_that_ends_while_it_is_asked_ends_no_bar() -> None:
    screen, text = console(terminal=True)

    asked = threading.Event()

    def gone() -> tuple[int, int]:
        asked.set()
        raise ConnectionError

    with Steps(screen) as steps:
        steps.report("folding 2 partitions")
        steps.watch(gone)
        assert asked.wait(PATIENCE)
        steps.report("publishing 2 snapshots")
        await_text(text, "publishing 2 snapshots")
        steps.watch(counting((2, 3)))
        await_text(text, "2 of 3 tasks")
