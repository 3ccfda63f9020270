"""The stages of a full snapshot: random histories follow legal edges, use each one, and lose no record."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.driver.test_compaction import compacted
from tests.support import inside
from tests.support.handlers import Accounts, Op, agrees, sliced

from statehold.errors import KafkaTrouble, UsageError
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryFullSink
from statehold.worker.full_snapshots.scheduler import FullSnapshots
from statehold.worker.full_snapshots.stages import EDGES, Idle, Stage, Writing, require_edge

#: seeds of the histories; together they use each edge
SEEDS = range(40)

Edge = tuple[str, str]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[Edge]:
    """The edges that full snapshots take during the test, and a check that no sink outlives its stage."""
    edges: set[Edge] = set()
    closed: list[MemoryFullSink] = []
    enter = FullSnapshots._enter

    def noted(self: FullSnapshots, following: Any) -> Any:
        before = self.stage
        entered = enter(self, following)
        edges.add((type(before).__name__, type(following).__name__))
        if isinstance(before, Writing):
            assert before.sink in closed
        return entered

    def close(sink: MemoryFullSink) -> None:
        closed.append(sink)

    monkeypatch.setattr(MemoryFullSink, "close", close)
    monkeypatch.setattr(FullSnapshots, "_enter", noted)
    return edges


def test_random_histories_use_each_edge_and_lose_nothing(seen: set[Edge]) -> None:
    for seed in SEEDS:
        Walk(seed).run(60)
    assert seen == {(kind.__name__, to.__name__) for kind, following in EDGES.items() for to in following}


def test_a_stage_that_the_table_does_not_allow_is_rejected() -> None:
    with pytest.raises(UsageError, match="cannot go from Idle to Idle"):
        require_edge(Idle(), Idle())


def test_every_stage_can_be_abandoned() -> None:
    stages: set[type[Stage]] = set(EDGES)
    assert all(Idle in EDGES[stage] for stage in stages - {Idle})


class Walk:
    """A partition that is fed, stopped, killed and truncated by chance, while full snapshots are due all the time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.driver = Driver(Accounts, autocommit=False, delta_interval=self.chance.choice(["commit", 0.5, "off"]))
        sliced(self.driver)
        self.ops: list[Op] = []

    def run(self, steps: int) -> None:
        self.feed()
        for _ in range(steps):
            self.chance.choices(
                [self.feed, self.ask, self.advance, self.compact, self.fail, self.truncate, self.kill, self.stop],
                [8, 4, 8, 1, 1, 1, 1, 1],
            )[0]()
        self.kill()
        assert agrees(self.driver, self.ops)

    def feed(self) -> None:
        for _ in range(self.chance.randint(1, 6)):
            op = Op(f"k{self.chance.randint(0, 40):03}", 1, size=900)
            self.ops.append(op)
            self.driver.feed(op)
        self.driver.commit()

    def ask(self) -> None:
        inside.lanes(self.driver)[0].live().full_snapshots.ask()
        self.driver.commit()

    def advance(self) -> None:
        self.driver.advance(self.chance.choice([0.05, 0.2, 6.0]))

    def compact(self) -> None:
        if self.driver.settings.snapshot.delta_interval == "commit":
            self.driver.commit()
            inside.forget_faults(self.driver.broker)  # the compaction would meet them, and not the worker
            compacted(self.driver)

    def fail(self) -> None:
        self.driver.broker.fail(self.chance.choice(["full", "ask"]), KafkaTrouble("no"))

    def truncate(self) -> None:
        """Delete the newest full snapshot, as a topic's retention does."""
        log = self.driver.broker.log(self.driver.names.snapshot, 0)
        live = inside.lanes(self.driver)[0].live()
        if not live.full_snapshots.refs:
            log.truncate(log.end)

    def kill(self) -> None:
        self.driver.crash()
        self.driver.restore()

    def stop(self) -> None:
        self.driver.stop()
        self.driver.restore()
