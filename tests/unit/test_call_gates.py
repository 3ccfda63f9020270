"""When attempts of a call may begin: at a rate, and one at a time while the other system is down."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

import pytest

from statehold.messages.call_outcome import CallJob
from statehold.worker.calls.gates import Gate


class World:
    """Calls, a clock and a gate; `run` lets time pass."""

    def __init__(self, rate: float = 0, patience: int = 3, longest: float = 8.0) -> None:
        self.now, self._numbers = 0.0, count()
        self._timers: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self.gate = Gate(self._later, lambda: self.now, rate, patience, longest)
        #: attempts in progress, and when each began
        self.running: list[CallJob] = []
        self.begun: list[tuple[str, float]] = []
        self.dropped: set[str] = set()
        #: calls that are dropped after they were offered, before their attempt begins
        self.leaving: set[str] = set()

    def _later(self, seconds: float, function: Callable[..., Any], *args: Any) -> None:
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), function, args))

    def offer(self, job: CallJob) -> bool:
        if job.id in self.dropped:
            return False
        if job.id not in self.leaving:
            self.ask(job)
        return True

    def ask(self, job: CallJob) -> None:
        if self.gate.admit(self, job):
            self.running.append(job)
            self.begun.append((job.id, self.now))

    def ask_all(self, *names: str) -> None:
        for name in names:
            self.ask(CallJob(name, "c", b"", None, 0))

    def end(self, answered: bool | None) -> bool:
        return self.gate.ended(self.running.pop(0), answered=answered)

    def run(self, until: float) -> None:
        while self._timers and self._timers[0][0] <= until:
            self.now, _, function, args = heapq.heappop(self._timers)
            function(*args)
        self.now = until

    def names(self) -> list[str]:
        return [job.id for job in self.running]


def broken(*others: str) -> World:
    """Return a world whose other system is down, with these calls waiting."""
    world = World()
    world.ask_all("a", "b", "c")
    assert [world.end(False) for _ in range(3)] == [False, False, True]
    world.ask_all(*others)
    assert world.running == []
    return world


def test_attempts_begin_at_the_rate() -> None:
    world = World(rate=10)
    world.ask_all(*(f"{number}" for number in range(5)))
    world.run(10.0)
    assert [name for name, _ in world.begun] == [f"{number}" for number in range(5)]
    assert [moment for _, moment in world.begun] == pytest.approx([number / 10 for number in range(5)])
    world.ask_all("late")
    assert world.begun[-1] == ("late", 10.0), "no rest of the past is made up for"


def test_a_failure_between_successes_is_no_outage() -> None:
    world = World(patience=2)
    for answered in (False, True, False, True, False):
        world.ask_all("a")
        assert not world.end(answered)


def test_an_outage_is_probed_by_one_attempt_at_a_time_with_longer_pauses() -> None:
    world = broken("d", "e", "f")
    probes = []
    for _ in range(6):
        world.run(world.now + 100)
        assert len(world.running) == 1
        probes.append(world.begun[-1])
        job = world.running[0]
        world.end(False)
        world.ask(job)  # it is tried again
    assert len({name for name, _ in probes}) == 3, "the calls take turns"


def test_the_pauses_double_up_to_the_longest() -> None:
    world, began = broken("d"), [0.0]
    for _ in range(5):
        while not world.running:
            world.run(world.now + 0.5)
        began.append(world.begun[-1][1])
        job = world.running[0]
        world.end(False)
        world.ask(job)
    assert [round(later - earlier, 3) for earlier, later in pairwise(began)] == [1, 2, 4, 8, 8]


def test_an_answer_ends_the_outage_for_all() -> None:
    world = broken("d", "e", "f")
    world.run(1.0)
    assert world.names() == ["d"]
    assert world.end(True)
    assert world.names() == ["e", "f"]
    assert not world.gate.down
    world.end(False)
    assert not world.gate.down, "failures are counted from 0"


def test_attempts_that_were_in_progress_when_it_began_begin_no_probe() -> None:
    world = World(patience=1)
    world.ask_all("a", "b", "c")
    assert world.end(False)
    world.ask_all("d")
    assert not world.end(False)
    world.run(1.0)
    assert world.names() == ["c", "d"]
    assert world.end(True), "an answer of any attempt ends it"


def test_a_probe_that_is_cancelled_is_followed_by_another_one() -> None:
    world = broken("d", "e")
    world.run(1.0)
    world.end(None)
    assert world.names() == ["e"]


def test_a_call_that_was_dropped_is_no_probe() -> None:
    world = broken("d", "e")
    world.dropped.add("d")
    world.run(1.0)
    assert world.names() == ["e"]


def test_a_call_that_is_dropped_before_its_probe_begins_holds_up_no_other() -> None:
    world = broken("d", "e", "f")
    world.leaving |= {"d", "e"}
    world.run(100.0)
    assert world.names() == ["f"]


def test_a_call_that_is_dropped_while_its_probe_waits_for_the_rate_holds_up_no_other() -> None:
    world = World(rate=0.1, patience=1)
    world.ask_all("a")
    world.end(False)
    world.ask_all("d", "e")
    world.leaving.add("d")
    world.run(100.0)
    assert world.names() == ["e"]


def test_without_waiting_calls_the_next_one_probes() -> None:
    world = broken()
    world.run(5.0)
    world.ask_all("d", "e")
    assert world.names() == ["d"]
    world.end(True)
    assert world.names() == ["e"]


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_a_rate_and_an_outage_go_together(order: tuple[bool, bool]) -> None:
    world = World(rate=2, patience=2)
    world.ask_all("a", "b", "c", "d")
    for answered in (False, False):
        while not world.running:
            world.run(world.now + 0.1)
        world.end(answered)
    assert world.gate.down
    for answered in order:
        while not world.running:
            world.run(world.now + 0.1)
        world.end(answered)
    world.run(world.now + 30)
    names = [name for name, _ in world.begun]
    assert sorted(set(names)) == ["a", "b", "c", "d"]
