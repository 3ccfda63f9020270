"""The search for a rejected row: random histories follow legal edges, use each one, and blame the record alone."""

from __future__ import annotations

import random
from math import log2

import pytest
from tests.driver.test_rejected_rows import BAD, booked, dead_lettered, ledger, pay

from statehold.bound.sink import Rows
from statehold.errors import UsageError
from statehold.worker.sinks.row_bisection import RowBisection
from statehold.worker.sinks.row_search import (
    EDGES,
    Halved,
    NoSearch,
    RecordFound,
    RowSearch,
    RowWanted,
    committed,
    rejected,
    require_edge,
)

ROW = Rows("bookings", ("account",), ("account",), [("ann",)], [])
Edge = tuple[type[RowSearch], type[RowSearch]]


class Search:
    """Records from 0 on, of which the database rejects some, in a model of the worker: no thread, no handler."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.count = chance, chance.randint(1, 64)
        #: records with a row that is rejected, and those whose row the session never finds
        self.bad = {each for each in range(self.count) if chance.random() < 0.1}
        self.hidden = {each for each in self.bad if chance.random() < 0.5}
        #: those that the database accepts at the next attempt, and those that it never does
        self.once = {each for each in self.bad if chance.random() < 0.3}
        self.never = self.bad - self.once
        #: the record that has put the row in question
        self.wanted = -1
        self.stage: RowSearch = NoSearch()
        self.good: list[int] = []
        self.dead: list[int] = []
        self.position = self.commits = 0
        self.edges: set[Edge] = set()

    def enter(self, following: RowSearch) -> None:
        if following != self.stage:
            require_edge(self.stage, following)
            self.edges.add((type(self.stage), type(following)))
        self.stage = following

    def run(self) -> None:
        while self.position < self.count:
            batch = list(range(self.position, min(self.count, self.position + (self.stage.limit or self.count))))
            if isinstance(self.stage, RowWanted):
                batch = self.found(self.stage, batch)
            self.commits += 1
            wrong = [each for each in batch if each in self.bad]
            if not wrong:
                self.end(batch)
            elif len(batch) == 1:
                self.enter(rejected(self.stage, batch[-1] + 1, 1, None))
                self.dead.append(batch[0])
                self.end([])
            else:
                row = ROW if wrong[0] not in self.hidden else None
                self.wanted = wrong[0]
                self.bad -= self.once & {self.wanted}
                self.enter(rejected(self.stage, batch[-1] + 1, len(batch), row))

    def found(self, stage: RowWanted, batch: list[int]) -> list[int]:
        """Handle records one by one until one puts the row; sometimes none does, or another batch ends before it."""
        if self.wanted not in batch or self.chance.random() < 0.2:
            return batch[: self.chance.randint(1, len(batch))]
        before = self.wanted - self.position
        self.enter(stage.put_by(self.wanted, before))
        return batch[:before] or [self.wanted]

    def end(self, batch: list[int]) -> None:
        """The batch has committed, or its only record is a dead letter."""
        self.good += batch
        self.position = batch[-1] + 1 if batch else self.position + 1
        self.enter(committed(self.stage, self.position, max(1, len(batch))))


def test_every_record_is_committed_or_blamed_in_a_number_of_commits_that_grows_slowly() -> None:
    edges: set[Edge] = set()
    for seed in range(500):
        search = Search(random.Random(seed))
        search.run()
        assert search.never <= set(search.dead) <= search.never | search.once
        assert search.dead == sorted(search.dead)
        assert search.good == sorted(set(range(search.count)) - set(search.dead))
        assert isinstance(search.stage, NoSearch)
        assert search.commits <= 1 + len(search.never | search.once) * (2 * log2(search.count + 1) + 4)
        edges |= search.edges
    assert edges == {(kind, to) for kind, following in EDGES.items() for to in following}


def test_driver_histories_use_each_edge_and_blame_no_other_record(monkeypatch: pytest.MonkeyPatch) -> None:
    edges: set[Edge] = set()
    stages: list[RowSearch] = [NoSearch()]
    enter = RowBisection._enter

    def noted(self: RowBisection, following: RowSearch) -> None:
        before = self.stage
        enter(self, following)
        edges.add((type(before), type(following)))
        stages.append(following)

    monkeypatch.setattr(RowBisection, "_enter", noted)
    for seed in range(40):
        chance = random.Random(seed)
        driver = ledger()
        amounts = [BAD if chance.random() < 0.1 else 100 + number for number in range(chance.randint(2, 40))]
        for amount in amounts:
            driver.database.finds_rows = chance.random() < 0.6
            pay(driver, amount)
            if chance.random() < 0.05:
                driver.commit()
            if chance.random() < 0.05:
                driver.crash()
                driver.restore()
        driver.commit()
        assert dead_lettered(driver) == [number for number, amount in enumerate(amounts) if amount == BAD]
        assert booked(driver).get("ann", []) == [amount for amount in amounts if amount != BAD]
        assert isinstance(stages[-1], NoSearch)
    assert edges >= {(NoSearch, RowWanted), (NoSearch, Halved), (RowWanted, RecordFound), (Halved, Halved)}


def test_a_stage_that_the_table_does_not_allow_is_rejected() -> None:
    with pytest.raises(UsageError, match="cannot go from NoSearch to RecordFound"):
        require_edge(NoSearch(), RecordFound(1, 0))


def test_only_the_first_rejection_is_searched_by_its_row() -> None:
    assert rejected(NoSearch(), 9, 9, ROW) == RowWanted(9, ROW)
    assert rejected(NoSearch(), 9, 9, None) == Halved(9, 4)
    assert rejected(NoSearch(), 9, 1, ROW) == Halved(9, 1)
    for stage in (RowWanted(9, ROW), RecordFound(9, 2), Halved(9, 4)):
        assert rejected(stage, 8, 3, ROW) == Halved(8, 1)


def test_the_search_ends_with_the_last_record_in_question() -> None:
    for stage in (RowWanted(9, ROW), RecordFound(9, 2), Halved(9, 4)):
        assert not isinstance(committed(stage, 8, 1), NoSearch)
        assert committed(stage, 9, 1) == NoSearch()
    assert committed(RecordFound(9, 2), 7, 2) == RecordFound(9, 0)
