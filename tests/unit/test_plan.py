"""The plan of the live loop: whatever fails, every record commits once and in order, and modes follow legal edges."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.messages import batch

from statehold.api.record import at
from statehold.config.sections.processing import CommitSettings
from statehold.errors import HandlerFailed
from statehold.worker.handler.record_failure import BatchFailed, RecordFailed
from statehold.worker.transaction.plan import EDGES, Mode, Step, View, decide
from statehold.worker.transaction.record_buffer import CommitPolicy, RecordBuffer

IDLE = View(
    mode=Mode.NORMAL,
    paused=False,
    open=False,
    due=False,
    full=False,
    in_flight=False,
    landed=False,
    waiting=False,
    reached=False,
    arrived=False,
    blocked=False,
    side_inputs_first=False,
)


class Walk:
    """A live partition whose handler, commits and database fail by chance; the broker is a list.

    The product decides and keeps the records. This model handles, commits and rolls back, and knows what is right.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.buffer = RecordBuffer()
        self.policy = CommitPolicy(CommitSettings(max_records=self.chance.randint(1, 6), interval=3.0))
        self.now = 0.0
        #: next offset to arrive, to take, to handle
        self.fed = self.taken = self.position = 0
        self.mailbox: list[int] = []
        self.open: list[int] = []
        self.flight: list[int] | None = None
        self.committed: list[int] = []
        #: records that fail, and how often still
        self.bad = {at: self.chance.randint(1, 3) for at in range(60) if self.chance.random() < 0.05}
        self.paused = False
        self.modes = [self.buffer.mode()]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += self.chance.random()
            if self.chance.random() < 0.5 and self.fed < 60:
                count = self.chance.randint(1, 4)
                self.mailbox += range(self.fed, self.fed + count)
                self.fed += count
            if self.chance.random() < 0.03:
                self.paused = not self.paused
            self.step(calm=False)
        self.paused = False
        for _ in range(2000):
            self.now += 1.0
            if self.committed == list(range(self.fed)) and self.flight is None:
                return
            self.step(calm=True)
        pytest.fail(f"{self.committed} of {self.fed}: the loop does not come to an end")

    def step(self, *, calm: bool) -> None:  # noqa: C901 - one case for each step
        step = decide(self.view())
        match step:
            case Step.SETTLE:
                self.settle(calm)
            case Step.COMMIT | Step.BEGIN_COMMIT:
                if self.settle(calm):
                    self.launch()
                    if step is Step.COMMIT:
                        self.settle(calm)
            case Step.HANDLE:
                self.handle(calm)
            case Step.TAKE:
                size = min(len(self.mailbox), self.policy.room())
                if size:
                    self.buffer.add(batch(*self.mailbox[:size]))
                    del self.mailbox[:size]
            case Step.FACE_FAILURE:
                assert not self.open
                assert self.flight is None, "a failure is faced only when everything before it is committed"
                failure = self.buffer.failure
                assert failure is not None
                assert failure.at == len(self.committed)
                self.buffer.retry()
            case Step.THROTTLE | Step.PAUSED:
                pass
        mode = self.buffer.mode()
        if mode is not self.modes[-1]:
            assert mode in EDGES[self.modes[-1]], f"{self.modes[-1]} to {mode} by {step}"
            self.modes.append(mode)

    def view(self) -> View:
        return View(
            mode=self.buffer.mode(),
            paused=self.paused,
            open=self.policy.since is not None,
            due=self.policy.due(self.now),
            full=self.policy.room() == 0,
            in_flight=self.flight is not None,
            landed=self.flight is not None and self.chance.random() < 0.5,
            waiting=bool(self.buffer.todo),
            reached=self.buffer.reached(self.position),
            arrived=bool(self.mailbox),
            blocked=self.chance.random() < 0.05,
            side_inputs_first=False,
        )

    def handle(self, calm: bool) -> None:
        messages = self.buffer.next(self.policy.room())
        assert messages is not None, "HANDLE with nothing to handle"
        offsets = [at(message) for message in messages]
        assert offsets[0] == self.position, "out of order, or with a gap"
        self.policy.handled(len(offsets), self.now)
        if not calm and self.chance.random() < 0.05:  # the watchdog ends a batch early
            kept = self.chance.randint(0, len(offsets))
            self.buffer.put_back(kept)
            self.policy.cut(len(offsets) - kept)
            offsets = offsets[:kept]
        failing = next((at for at in offsets if self.bad.get(at, 0) > 0), None)
        if failing is not None:
            whole = len(offsets) > 1 and self.chance.random() < 0.5
            if not whole:
                self.bad[failing] -= 1
            error = HandlerFailed("raised", topic="input", partition=0, position=failing)
            self.open += offsets
            if self.flight is None or self.settle(calm, then_fail=True):
                self.buffer.fail_at(BatchFailed(offsets[0], error) if whole else RecordFailed(failing, error))
                self.roll_back()
            return
        self.open += offsets
        if offsets:
            self.position = offsets[-1] + 1
        if not calm and self.chance.random() < 0.03:  # an output is rejected
            self.buffer.suspect()
            self.roll_back()

    def launch(self) -> None:
        if self.policy.since is None:
            return
        self.flight, self.open = self.open, []
        self.policy.close()
        self.buffer.close()

    def settle(self, calm: bool, *, then_fail: bool = False) -> bool:
        """False: the commit was aborted, and all was rolled back."""
        if self.flight is None:
            return True
        if not calm and self.chance.random() < 0.2:
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
        if behind > self.position and self.buffer.failure is None and self.chance.random() < 0.1:
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
    found = set()
    for seed in range(200):
        walk = Walk(seed)
        walk.run(120)
        found |= set(walk.modes)
    assert found == set(Mode) - {Mode.BISECTING}


def seen(**changes: object) -> Step:
    return decide(View(**{name: getattr(IDLE, name) for name in IDLE.__struct_fields__} | changes))


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({}, Step.TAKE),
        ({"waiting": True}, Step.HANDLE),
        ({"waiting": True, "blocked": True}, Step.THROTTLE),
        ({"open": True, "due": True, "waiting": True}, Step.BEGIN_COMMIT),
        ({"open": True, "due": True, "mode": Mode.CAREFUL}, Step.COMMIT),
        ({"open": True, "due": True, "mode": Mode.BISECTING}, Step.COMMIT),
        ({"in_flight": True}, Step.SETTLE),
        ({"open": True, "due": True, "in_flight": True}, Step.BEGIN_COMMIT),
        ({"open": True, "due": True, "in_flight": True, "waiting": True}, Step.HANDLE),
        ({"open": True, "due": True, "in_flight": True, "arrived": True}, Step.TAKE),
        ({"open": True, "due": True, "in_flight": True, "waiting": True, "landed": True}, Step.SETTLE),
        ({"open": True, "due": True, "in_flight": True, "waiting": True, "full": True}, Step.BEGIN_COMMIT),
        ({"open": True, "due": True, "in_flight": True, "waiting": True, "blocked": True}, Step.BEGIN_COMMIT),
        ({"open": True, "due": True, "in_flight": True, "waiting": True, "mode": Mode.BEHIND}, Step.BEGIN_COMMIT),
        ({"open": True, "due": True, "in_flight": True, "waiting": True, "mode": Mode.CAREFUL}, Step.COMMIT),
        ({"in_flight": True, "arrived": True}, Step.TAKE),
        ({"in_flight": True, "landed": True, "waiting": True}, Step.SETTLE),
        ({"paused": True}, Step.PAUSED),
        ({"paused": True, "waiting": True}, Step.PAUSED),
        ({"paused": True, "open": True}, Step.COMMIT),
        ({"paused": True, "in_flight": True}, Step.SETTLE),
        ({"paused": True, "mode": Mode.FAILING, "reached": True}, Step.FACE_FAILURE),
        ({"mode": Mode.FAILING, "reached": True, "open": True}, Step.COMMIT),
        ({"mode": Mode.FAILING, "reached": True, "in_flight": True}, Step.SETTLE),
        ({"mode": Mode.FAILING, "waiting": True}, Step.HANDLE),
        ({"mode": Mode.BEHIND, "reached": True, "paused": True}, Step.COMMIT),
        ({"mode": Mode.BEHIND, "waiting": True}, Step.HANDLE),
        ({"side_inputs_first": True, "waiting": True}, Step.COMMIT),
    ],
)
def test_one_rule_decides(changes: dict[str, object], step: Step) -> None:
    assert seen(**changes) is step
