"""`script/chaos --soak`: a steady load with faults now and then; memory, threads and files must be flat."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import linear_regression
from typing import Any

from tests.chaos.arena import Arena, Shape
from tests.chaos.broker_faults import ConnectionsBroken, LateCommit
from tests.chaos.faults import Fault, ShortFreeze, WorkerKilled
from tests.chaos.run import Result, run
from tests.chaos.schedule import Planned

_EVERY = 60.0
_SAMPLE = 2.0
#: the first minutes of a process fill caches; they are not counted
WARM = 240.0
#: minutes; a shorter run shows nothing about growth
SHORTEST = 8.0
#: a leak of so much an hour is one
LIMITS = {"rss": 60_000, "threads": 12, "fds": 30}

Sample = dict[str, float]


def plan(seed: int, seconds: float) -> list[Planned]:
    """A fault a minute; only the last worker is ever killed, so that the others grow old."""
    draw = random.Random(seed)
    planned: list[Planned] = []
    at = _EVERY
    while at < seconds:
        kinds: list[Callable[[random.Random], Fault]] = [WorkerKilled, ShortFreeze, ConnectionsBroken, LateCommit]
        fault = draw.choice(kinds)(draw)
        if isinstance(fault, WorkerKilled):
            fault.victim = 2
        planned.append(Planned(at, fault))
        at += _EVERY
    return planned


class Sampler:
    """What each process uses, every few seconds."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, int], list[Sample]] = defaultdict(list)
        self._next = 0.0

    def __call__(self, arena: Arena) -> None:
        now = arena.history.now()
        if now < self._next:
            return
        self._next = now + _SAMPLE
        for worker in arena.workers:
            if used := worker.usage():
                self.samples[worker.name, worker.pid].append({"t": now, **used})
                arena.history.note("usage", worker=worker.name, pid=worker.pid, **used)

    def slopes(self) -> dict[str, dict[str, float]]:
        """By process that grew old enough: kilobytes, threads and files an hour, and what it used in the end."""
        reported = {}
        for (name, pid), samples in self.samples.items():
            old = [sample for sample in samples if sample["t"] - samples[0]["t"] > WARM]
            if len(old) < 30:
                continue
            times = [sample["t"] / 3600 for sample in old]
            grown = {what: linear_regression(times, [s[what] for s in old]).slope for what in LIMITS}
            reported[f"{name} ({pid})"] = {f"{what}/h": round(slope, 1) for what, slope in grown.items()} | dict(
                old[-1]
            )
        return reported


def growing(slopes: dict[str, dict[str, float]]) -> list[str]:
    """What grew by more than the limit."""
    return [
        f"{process}: {what} grew by {found[f'{what}/h']} an hour"
        for process, found in slopes.items()
        for what, limit in LIMITS.items()
        if found[f"{what}/h"] > limit
    ]


def soak(seed: int, minutes: float, per_second: int, directory: Path) -> Result:
    """Findings of a run, and `not flat` where something grew."""
    shape = Shape(1, 3, 6, per_second, accounts=3000, settings={"STATEHOLD_SNAPSHOT__FULL_INTERVAL": "60"})
    sampler = Sampler()
    result = run(shape, plan(seed, minutes * 60), directory, seed=seed, title="soak", meanwhile=sampler)
    slopes = sampler.slopes()
    result.verdict.figures["usage"] = slopes
    result.verdict.add("not flat", growing(slopes))
    return result


def show(result: Result) -> Sequence[Any]:
    """One line for each process that grew old."""
    return [f"{process}: {found}" for process, found in result.verdict.figures["usage"].items()]
