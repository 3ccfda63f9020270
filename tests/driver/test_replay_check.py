"""`snapshot verify --replay` finds what a handler does otherwise, and nothing in what comes and leaves in one delta."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from tests.support import inside

from statehold import Handler, JoinBuffer, Output, Record, Session, Table, Tumbling
from statehold.admin.inspection import replay_check
from statehold.kafka.admin.admin import TopicFacts
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.inspect import past
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryReader
from statehold.worker.handler import time_slices

BEGIN = 1_750_000_000_000


@dataclass
class MemoryView:
    """What the check asks of a `TopicView`, answered from the topics of a driver."""

    driver: Driver

    @property
    def reader(self) -> MemoryReader:
        return self.another_reader()

    def another_reader(self) -> MemoryReader:
        return MemoryReader(self.driver.broker, lambda: False)

    def facts_of(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        return {topic: TopicFacts(topic, "id", 1, 1) for topic in topics}

    def place(self, partition: int) -> Place:
        return inside.place(self.driver, partition)

    def point(self, partition: int, text: str) -> past.Point:
        return past.parse(text)


def differences(driver: Driver, kind: type[Handler[Any]]) -> list[str]:
    found = replay_check.replay(cast("Any", MemoryView(driver)), kind, 0, "n:0", "latest")
    return [each.text for each in found.differences]


class Visits(Handler[str]):
    """A session that a second record prolongs is another row: the first one has come and left."""

    visits = Session(3, key=str, value=int, merge=lambda a, b: a + b)

    def on_record(self, record: Record[str]) -> None:
        self.visits.update(record, record.value, lambda count: (count or 0) + 1)

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        pass


class Pairs(Handler[str]):
    pairs = JoinBuffer(2, key=str, left=str, right=str, join="outer")

    def on_record(self, record: Record[str]) -> None:
        side = self.pairs.right if record.offset % 2 else self.pairs.left
        side(record, record.value, "x")

    def on_unmatched(self, name: str, key: str, side: str, value: Any, timestamp: int) -> None:
        pass


@pytest.mark.parametrize("kind", [Visits, Pairs])
def test_a_row_that_comes_and_leaves_in_one_delta_is_no_difference(kind: type[Handler[str]]) -> None:
    driver = Driver(kind, batch=10)
    for seconds in (0, 1, 2, 90, 91, 300):
        driver.feed("ann", timestamp=BEGIN + seconds * 1000)
    driver.commit()
    assert differences(driver, kind) == []


class Minutes(Handler[str]):
    windows = Tumbling(60, key=str, value=int)
    closed = Table(key=str, value=int)
    out = Output("out", value=str)

    def on_record(self, record: Record[str]) -> None:
        self.windows.update(record, record.value, lambda count: (count or 0) + 1)

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.closed[key] = value
        self.out.send(key)


class Forgetful(Minutes):
    """Deletes a key that the code before has kept."""

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        super().on_window(name, key, start, end, value)
        if key == "k5":
            self.closed.delete("k1")


def test_slices_are_replayed_where_they_ended_and_a_deleted_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "ROWS", 2)
    driver = Driver(Minutes, batch=4)
    for number in range(9):
        driver.feed(f"k{number}", timestamp=BEGIN)
    driver.feed("next", timestamp=BEGIN + 120_000)
    driver.commit()
    assert driver.outputs("out") == [f"k{number}" for number in range(9)]
    assert differences(driver, Minutes) == []
    (found,) = differences(driver, Forgetful)
    assert "k1" in found
