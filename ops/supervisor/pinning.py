"""Pins the Python threads of a process to one core, and its other threads to the other cores."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

#: seconds; new threads begin on the cores of the thread that started them
_EVERY: Final = 1.0
_TASKS: Final = Path("/proc/self/task")


def places(
    tasks: Collection[int], python: Collection[int], core: int, allowed: Collection[int]
) -> Mapping[int, frozenset[int]]:
    """Return the cores of each thread. librdkafka's threads get the other cores, or the only one."""
    others = frozenset(allowed) - {core} or frozenset({core})
    return {task: frozenset({core}) if task in python else others for task in tasks}


class Pinning:
    """Repeats it each second, because clients of Kafka come and go with partitions. Linux only."""

    def __init__(self, core: int, allowed: Collection[int], pin: Callable[[int, Collection[int]], None]) -> None:
        self._core, self._allowed, self._pin = core, allowed, pin
        self._pinned: dict[int, frozenset[int]] = {}

    def start(self) -> None:
        threading.Thread(target=self._run, name="pinning", daemon=True).start()

    def turn(self, tasks: Collection[int], python: Collection[int]) -> None:
        """Pin the threads whose place has changed."""
        wanted = places(tasks, python, self._core, self._allowed)
        for task, cores in wanted.items():
            if self._pinned.get(task) != cores:
                with contextlib.suppress(OSError):  # it has just ended, or the system forbids it
                    self._pin(task, cores)
        self._pinned = dict(wanted)

    def _run(self) -> None:
        forever = threading.Event()
        while not forever.wait(_EVERY):
            tasks = [int(each.name) for each in _TASKS.iterdir()]
            self.turn(tasks, [each.native_id for each in threading.enumerate() if each.native_id is not None])


def pin_process(core: int) -> None:
    """Begin to pin this process's threads; do nothing where the system cannot."""
    if hasattr(os, "sched_setaffinity") and _TASKS.exists():
        Pinning(core, os.sched_getaffinity(0), os.sched_setaffinity).start()
