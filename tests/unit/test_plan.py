"""The plan of the live loop: whatever fails, every record commits once and in order, and modes follow legal edges."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.messages import batch

from statehold.api.record import at
from statehold.config.sections.processing import CommitSettings
from statehold.errors import HandlerFailed
from statehold.worker.handler.record_failure import BatchFailed, RecordFailed
from statehold.worker.transaction.plan import EDGES, Mode, Step, View, decide
from statehold.worker.transaction.record_buffer import CommitPolicy, RecordBuffer

FACTS = View.__struct_fields__[1:]

#: the facts that hold, with a mode other than NORMAL first; all others are false
RULES = {
    Step.TAKE: ["", "in_flight arrived", "open due in_flight arrived"],
    Step.HANDLE: ["waiting", "open due in_flight waiting", "FAILING waiting", "BEHIND waiting"],
    Step.THROTTLE: ["waiting blocked"],
    Step.BEGIN_COMMIT: [
        "open due waiting",
        "open due in_flight",
        "open due in_flight waiting full",
        "open due in_flight waiting blocked",
        "BEHIND open due in_flight waiting",
    ],
    Step.COMMIT: [
        "CAREFUL open due",
        "BISECTING open due",
        "CAREFUL open due in_flight waiting",
        "paused open",
        "FAILING reached open",
        "BEHIND reached paused",
        "side_inputs_first waiting",
    ],
    Step.SETTLE: [
        "in_flight",
        "in_flight landed waiting",
        "open due in_flight waiting landed",
        "paused in_flight",
        "FAILING reached in_flight",
    ],
    Step.PAUSED: ["paused", "paused waiting"],
    Step.FACE_FAILURE: ["FAILING paused reached"],
}


@pytest.mark.parametrize(("facts", "step"), [(facts, step) for step, views in RULES.items() for facts in views])
def test_one_rule_decides(facts: str, step: Step) -> None:
    words = facts.split()
    mode = Mode[words.pop(0)] if facts[:1].isupper() else Mode.NORMAL
    assert set(words) <= set(FACTS)
    assert decide(View(mode, *(fact in words for fact in FACTS))) is step


class Walk:
    """A live partition whose handler, commits and database fail by chance; the broker is a list.

    The product decides and keeps the records. This model handles, commits and rolls back, and knows what is right.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.buffer = RecordBuffer()
        self.policy = CommitPolicy(CommitSettings(max_records=self.chance.randint(1, 6), interval=3.0))
        self.now = 0.0
        #: next offset to arrive, to handle
        self.fed = self.position = 0
        self.mailbox: list[int] = []
        self.open: list[int] = []
        self.flight: list[int] | None = None
        self.committed: list[int] = []
        #: records that fail, and how often still
        self.bad = {at: self.chance.randint(1, 3) for at in range(60) if self.happens(0.05)}
        self.paused = self.calm = False
        self.modes = [self.buffer.mode()]

    def happens(self, probability: float) -> bool:
        return self.chance.random() < probability

    def run(self, steps: int) -> Walk:
        for _ in range(steps):
            self.now += self.chance.random()
            if self.happens(0.5) and self.fed < 60:
                count = self.chance.randint(1, 4)
                self.mailbox += range(self.fed, self.fed + count)
                self.fed += count
            self.paused ^= self.happens(0.03)
            self.step()
        self.paused, self.calm = False, True
        for _ in range(2000):
            self.now += 1.0
            if self.committed == list(range(self.fed)) and self.flight is None:
                return self
            self.step()
        pytest.fail(f"{self.committed} of {self.fed}: the loop does not come to an end")

    def step(self) -> None:
        match step := decide(self.view()):
            case Step.SETTLE:
                self.settle()
            case Step.COMMIT | Step.BEGIN_COMMIT:
                if self.settle() and self.policy.since is not None:
                    self.flight, self.open = self.open, []
                    self.policy.close()
                    self.buffer.close()
                if step is Step.COMMIT:
                    self.settle()
            case Step.HANDLE:
                self.handle()
            case Step.TAKE:
                if size := min(len(self.mailbox), self.policy.room()):
                    self.buffer.add(batch(*self.mailbox[:size]))
                    del self.mailbox[:size]
            case Step.FACE_FAILURE:
                assert not self.open
                assert self.flight is None, "a failure is faced only when everything before it is committed"
                assert self.buffer.failure is not None
                assert self.buffer.failure.at == len(self.committed)
                self.buffer.retry()
        mode = self.buffer.mode()
        if mode is not self.modes[-1]:
            assert mode in EDGES[self.modes[-1]], f"{self.modes[-1]} to {mode} by {step}"
            self.modes.append(mode)

    def view(self) -> View:
        flying = self.flight is not None
        return View(
            mode=self.buffer.mode(),
            paused=self.paused,
            open=self.policy.since is not None,
            due=self.policy.due(self.now),
            full=self.policy.room() == 0,
            in_flight=flying,
            landed=flying and self.happens(0.5),
            waiting=bool(self.buffer.todo),
            reached=self.buffer.reached(self.position),
            arrived=bool(self.mailbox),
            blocked=self.happens(0.05),
            side_inputs_first=False,
        )

    def handle(self) -> None:
        messages = self.buffer.next(self.policy.room())
        assert messages is not None, "HANDLE with nothing to handle"
        offsets = [at(message) for message in messages]
        assert offsets[0] == self.position, "out of order, or with a gap"
        self.policy.handled(len(offsets), self.now)
        if not self.calm and self.happens(0.05):  # the watchdog ends a batch early
            kept = self.chance.randint(0, len(offsets))
            self.buffer.put_back(kept)
            self.policy.cut(len(offsets) - kept)
            offsets = offsets[:kept]
        self.open += offsets
        failing = next((at for at in offsets if self.bad.get(at, 0) > 0), None)
        if failing is not None:
            whole = len(offsets) > 1 and self.happens(0.5)
            if not whole:
                self.bad[failing] -= 1
            error = HandlerFailed("raised", topic="input", partition=0, position=failing)
            if self.settle():
                self.buffer.fail_at(BatchFailed(offsets[0], error) if whole else RecordFailed(failing, error))
                self.roll_back()
            return
        self.position += len(offsets)
        if not self.calm and self.happens(0.03):  # an output is rejected
            self.buffer.suspect()
            self.roll_back()

    def settle(self) -> bool:
        """False: the commit was aborted, and all was rolled back."""
        if self.flight is not None:
            if not self.calm and self.happens(0.2):
                self.roll_back()
                return False
            self.committed += self.flight
            self.flight = None
            self.buffer.committed()
            if self.buffer.barrier is not None and len(self.committed) >= self.buffer.barrier:
                self.buffer.barrier = None
        return True

    def roll_back(self) -> None:
        behind = len(self.committed) + len(self.flight or self.open)
        self.flight, self.open = None, []
        self.policy.close()
        self.position = len(self.committed)
        self.buffer.roll_back()
        if behind > self.position and self.buffer.failure is None and self.happens(0.1):
            self.buffer.barrier = behind  # the sinks' database has the first of the two transactions


@pytest.mark.parametrize("seed", range(0, 2_000, 100))
def test_on_random_walks_every_record_commits_once_and_in_order(seed: int) -> None:
    for each in range(seed, seed + 50):
        Walk(each).run(120)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=100_000, deadline=None)
@given(st.integers(0, 2**64), st.integers(1, 200))
def test_on_many_random_walks_every_record_commits_once_and_in_order(seed: int, steps: int) -> None:
    Walk(seed).run(steps)


def test_the_walks_reach_every_mode_that_records_alone_lead_to() -> None:
    found = {mode for seed in range(200) for mode in Walk(seed).run(120).modes}
    assert found == set(Mode) - {Mode.BISECTING}
