"""Processes that die, or get SIGTERM, at every named point; a hundred partitions; mailboxes that are full."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.chaos.arena import Arena, Shape
from tests.chaos.faults import BusyZombie, Fault, KilledAtPoint, WorkerKilled
from tests.chaos.points import POINTS
from tests.chaos.run import run
from tests.chaos.schedule import Planned
from tests.chaos.workers import pause

pytestmark = [pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(1200)]

#: all points are passed: gaps are replayed, full snapshots are taken all the time
REPLAYED = {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "2", "STATEHOLD_SNAPSHOT__FULL_INTERVAL": "3"}
PATIENCE = 60.0


class DiesAt(KilledAtPoint):
    """A fault that is over only when a process has come to the point."""

    def __init__(self, draw: random.Random, point: str) -> None:
        super().__init__(draw)
        self.point, self.hold = point, 3.0

    def heal(self, arena: Arena) -> None:
        await_reached(arena, self.point, lambda: provoke(arena, self.point))
        super().heal(arena)


class ToldToStopAt(DiesAt):
    """It is held up there, and hears SIGTERM twice meanwhile: a drain from that point on, and exit code 0."""

    def inject(self, arena: Arena) -> None:
        arena.points.arm(self.point, "hold 2")
        (pid,) = await_reached(arena, self.point, lambda: provoke(arena, self.point))
        held = next(worker for worker in arena.workers if worker.pid == pid)
        held.signal(signal.SIGTERM)
        held.signal(signal.SIGTERM)
        code = held.wait(60.0)
        assert code == 0, f"{held.name} ended with {code}, stopped at {self.point}\n{held.tail()}"


def provoke(arena: Arena, point: str) -> None:
    """Make a worker restore, or drain."""
    if point in ("before_fence", "after_fence", "mid_restore", "mid_replay"):
        for worker in arena.workers:
            worker.kill()
            worker.start()
    elif point == "mid_drain":
        worker = arena.worker(0)
        if worker.running:
            worker.ask_stop()
        else:  # it had nothing to drain: a worker that hands it a partition has
            worker.start()


def await_reached(arena: Arena, point: str, again: Callable[[], None]) -> list[int]:
    """The pids; what leads there is done again now and then."""
    deadline, next_try = arena.history.now() + 2 * PATIENCE, arena.history.now()
    while not (reached := arena.points.reached(point)):
        now = arena.history.now()
        assert now < deadline, f"no process came to {point} ({POINTS[point]}) within {2 * PATIENCE:.0f} s"
        if now >= next_try:
            again()
            next_try = arena.history.now() + 20.0
        arena.revive()
        pause(0.05)
    return reached


def one_after_the_other(make: Callable[[str], Fault]) -> list[Planned]:
    return [Planned(2.0 + 8.0 * number, make(point)) for number, point in enumerate(POINTS)]


@pytest.mark.parametrize(
    ("failing", "inputs"), [(0, 1), (40, 1), (0, 2)], ids=["all is well", "one in 40 fails", "two inputs"]
)
def test_sigkill_at_every_point(tmp_path: Path, seed: int, failing: int, inputs: int) -> None:
    draw, shape = random.Random(seed), Shape(1, 2, 4, 200, settings=REPLAYED, failing=failing, inputs=inputs)
    planned = one_after_the_other(lambda point: DiesAt(draw, point))
    result = run(shape, planned, tmp_path, seed=seed, title="SIGKILL at every point")
    assert result.good, "\n".join(result.verdict.lines())


@pytest.mark.parametrize("inputs", [1, 2])
def test_sigterm_at_every_point(tmp_path: Path, seed: int, inputs: int) -> None:
    draw, shape = random.Random(seed), Shape(1, 2, 4, 200, settings=REPLAYED, inputs=inputs)
    planned = one_after_the_other(lambda point: ToldToStopAt(draw, point))
    result = run(shape, planned, tmp_path, seed=seed, title="SIGTERM at every point")
    assert result.good, "\n".join(result.verdict.lines())


def test_a_hundred_partitions_in_one_process(tmp_path: Path, seed: int) -> None:
    """One process, killed and started again."""
    shape = Shape(1, 1, 100, 500, accounts=500, proxied=False)
    fault = WorkerKilled(random.Random(seed))
    result = run(shape, [Planned(5.0, fault)], tmp_path, seed=seed, title="100 partitions")
    assert result.good, "\n".join(result.verdict.lines())


@pytest.mark.parametrize("inputs", [1, 2])
def test_a_mailbox_that_is_always_full(tmp_path: Path, seed: int, inputs: int) -> None:
    settings = {"STATEHOLD_FLOW__HIGH": "20", "STATEHOLD_FLOW__LOW": "5", "STATEHOLD_COMMIT__MAX_RECORDS": "20"}
    draw = random.Random(seed)
    planned = [Planned(2.0, BusyZombie(draw)), Planned(20.0, BusyZombie(draw))]
    shape = Shape(1, 2, 4, 300, settings=settings, inputs=inputs)
    result = run(shape, planned, tmp_path, seed=seed, title="full mailboxes")
    assert result.good, "\n".join(result.verdict.lines())
