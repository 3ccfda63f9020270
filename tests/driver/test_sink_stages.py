"""The stages of a sink database: random histories follow legal edges, use each one, and lose no row."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from tests.driver.test_sinks import ACTIONS, Books, Op, agrees, books, endure
from tests.support import inside

from statehold.bound.sink import SinkPosition
from statehold.errors import Fenced, ProducerFenced, SinkDisagrees, UsageError
from statehold.testing import Driver
from statehold.testing.memory.database import MemorySession
from statehold.worker.sinks.coordinator import SinkCoordinator
from statehold.worker.sinks.stages import EDGES, Ahead, Disconnected, Even, SinkStage, Written, require_edge

#: seeds of the histories; together they use each edge
SEEDS = range(30)

Edge = tuple[type[SinkStage], type[SinkStage]]


class Seen:
    """The edges that sink databases take, and the connections: those opened, and those that a stage holds now."""

    def __init__(self) -> None:
        self.edges: set[Edge] = set()
        self.opened: list[MemorySession] = []
        self.held: list[Any] = []

    def note(self, before: SinkStage, following: Any) -> None:
        self.edges.add((type(before), type(following)))
        if isinstance(before, Disconnected):
            self.held.append(following.session)
        elif isinstance(following, Disconnected):
            self.held.remove(before.session)
        else:
            assert before.session is following.session, "a connection is replaced only after it has ended"
        if isinstance(following, Written):
            assert following.session._database.held[0] == following.held  # type: ignore[attr-defined]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found, enter, make = Seen(), SinkCoordinator._enter, MemorySession.__init__

    def noted(self: SinkCoordinator, following: SinkStage) -> None:
        before = self.stage
        enter(self, following)
        found.note(before, following)

    def opened(self: MemorySession, *args: Any) -> None:
        make(self, *args)
        found.opened.append(self)

    monkeypatch.setattr(SinkCoordinator, "_enter", noted)
    monkeypatch.setattr(MemorySession, "__init__", opened)
    return found


def test_random_histories_use_each_edge_and_lose_nothing(seen: Seen) -> None:
    for seed in SEEDS:
        walk(random.Random(seed))
        assert all(session._closed for session in seen.opened if session not in seen.held), "a connection is left open"
    assert seen.edges == {(kind, to) for kind, following in EDGES.items() for to in following}


def walk(chance: random.Random) -> None:
    """Feed a partition, command, kill and move it by chance, with faults of Kafka and of the database at any call."""
    Books.down.clear()
    driver = books(batch=chance.choice([1, 2, 5]), delta_interval=chance.choice(["commit", 0.5]))
    driver.commit_record()
    for _ in range(60):
        endure(driver, step(chance))
        if chance.random() < 0.02:
            lose(driver)
    inside.forget_faults(driver.broker)
    inside.forget_faults(driver.database)
    Books.down.clear()
    driver.restore()
    driver.commit()
    assert agrees(driver)
    assert driver.database.held[0].position == driver.position()


def lose(driver: Driver) -> None:
    """Another owner fences the producer between the commit of the database and Kafka's."""
    driver.broker.fail("commit", ProducerFenced("fault"))
    with suppress(Fenced):
        endure(driver, "commit")
    inside.forget_faults(driver.broker)
    Books.down.clear()
    driver.restore()


def step(chance: random.Random) -> Any:
    return chance.choices(
        [
            Op(chance.choice("abc"), chance.choice([1, 2, 7]), chance.random() < 0.2),
            "commit",
            chance.choice(sorted(ACTIONS)),
            ("kafka", chance.choice(["offsets", "commit", "abort"]), chance.random() < 0.5),
            ("database", chance.choice(["commit", "take", "connect"]), chance.random() < 0.5),
            ("die at", chance.choice(["kafka", "database"]), chance.random() < 0.5),
            ("down", chance.choice("abc")),
            ("up",),
        ],
        [8, 4, 4, 1, 1, 1, 1, 2],
    )[0]


def test_a_write_that_ends_after_its_partition_was_released_leaves_its_stage() -> None:
    driver = Driver(Books, autocommit=False)
    driver.feed(Op("ann", 1))
    driver.commit()
    live = inside.lane(driver).live()
    sinks = next(each for each in live.participants.members if isinstance(each, SinkCoordinator))
    driver.database.on_commit = lambda *_: sinks.close()
    driver.feed(Op("ann", 2))
    driver.commit()
    assert isinstance(sinks.stage, Disconnected)


def test_a_database_that_is_rejected_keeps_no_connection(seen: Seen) -> None:
    driver = Driver(Books, autocommit=False)
    driver.feed(Op("ann", 1))
    driver.commit()
    driver.database.held[0] = driver.database.held[0]._replace(position=0)
    with pytest.raises(SinkDisagrees):
        driver.restore()
    assert [session._closed for session in seen.opened] == [False, True], "the first one belongs to the owner before"


def test_a_stage_that_the_table_does_not_allow_is_rejected() -> None:
    stage = Disconnected(SinkPosition(0, -1))
    with pytest.raises(UsageError, match="cannot go from Disconnected to Disconnected"):
        require_edge(stage, stage)


def test_only_a_database_that_is_even_is_written() -> None:
    assert {kind for kind, following in EDGES.items() if Written in following} == {Even}
    assert {kind for kind, following in EDGES.items() if Ahead in following} == {Disconnected, Written}


def test_every_connection_can_be_lost() -> None:
    assert all(Disconnected in EDGES[kind] for kind in set(EDGES) - {Disconnected})
