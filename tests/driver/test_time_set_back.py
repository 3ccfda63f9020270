"""`statehold repair time`: what it changes and says, and how the next owner continues."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.driver.test_records_ahead import HOUR, MINUTE, YEAR_2100, Minutes, now, settings, time_of
from tests.driver.test_state_replacement import Tool
from tests.support import inside

from statehold import Handler, JoinBuffer, Output, Record, Table
from statehold.admin.repair.repair import RepairedState
from statehold.admin.repair.time import SetTimeBack
from statehold.admin.state.stopped_service import LastState, StoppedService
from statehold.common.visible import visible_time
from statehold.snapshot.restore.restore import restore
from statehold.state import digest
from statehold.state.digest import MODULUS, table_digest
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryReader
from statehold.worker.handler.engine import Engine


def examined(driver: Driver, kind: type[Handler[Any]], to: int, *partitions: int) -> RepairedState:
    """What the command decides about partition 0 of a driver."""
    place, reader = inside.place(driver), MemoryReader(driver.broker, lambda: False)

    def find(_: object) -> LastState:
        found = restore(reader, place, lambda: Engine(kind, 0).state, lambda *_: None, driver.clock)
        return LastState(found.commit_record, found.state)

    stopped = SimpleNamespace(find=find, settings=driver.settings)
    return SetTimeBack(to, partitions).examine(cast("StoppedService", stopped), place)


def set_back(driver: Driver, kind: type[Handler[Any]], to: int) -> RepairedState:
    """Carry the decision out, and continue."""
    driver.commit()
    driver.crash()
    tool = Tool(driver)
    repaired = examined(driver, kind, to)
    tool.state = lambda: repaired.state  # type: ignore[method-assign]
    tool.replace_state(lambda state: None)
    driver.restore()
    return repaired


def poisoned() -> tuple[Driver, int]:
    """A minute of records, and one of the year 2100. Returns the time before it."""
    driver = Driver(Minutes, settings=settings(max_ahead="off"))
    start = (now(driver) // HOUR + 1) * HOUR
    driver.clock.advance((start - now(driver)) / 1000)
    driver.feed("ann", timestamp=start)
    driver.feed("bob", timestamp=start + 30_000)
    driver.feed("eve", timestamp=YEAR_2100)
    driver.feed("ann", timestamp=start + 31_000)
    return driver, start + 30_000


def test_the_plan_says_what_is_open_again() -> None:
    driver, to = poisoned()
    driver.commit()
    repaired = examined(driver, Minutes, to)
    assert repaired.finding.startswith("its time is 2100-01-01T00:00:00.000Z, 27")
    assert repaired.finding.endswith(f"days later than {examined(driver, Minutes, to).finding.split('than ')[1]}")
    parts = dict(part.split(": ", 1) for part in repaired.consequence.split("; ") if ": " in part)
    assert "also those that have closed" in parts["counts"]
    assert "1 are open, 1 of them begin later" in repaired.consequence
    assert parts["timers"].startswith("2 are set, 1 of them are due after 2100-01-01T00:00:00.000Z")
    assert parts["last"] == f"0 expired keys are there again, 2 now expire at {parts['last'].split('at ')[1]}"
    assert parts["seen"].startswith("0 expired keys are there again, 2 now expire at ")
    assert repaired.consequence.endswith("time.max_ahead is off, so the next such record advances the time again")


def test_the_next_owner_continues_at_the_earlier_time() -> None:
    driver, to = poisoned()
    driver.settings = settings()
    before = driver.outputs("out")
    assert "ann is late" in before
    repaired = set_back(driver, Minutes, to)
    assert "time.max_ahead" not in repaired.consequence
    assert time_of(driver) == to
    driver.feed("ann", timestamp=to + 1_000)
    driver.feed("eve", timestamp=YEAR_2100)
    driver.feed("bob", timestamp=to + MINUTE)
    assert time_of(driver) == to + MINUTE
    assert driver.outputs("out")[len(before) :] == [
        "ann after 3",
        "eve after 2",
        "ann closed with 1",
        "bob after None",
    ]
    driver.advance(60.0)
    driver.crash()
    driver.restore()
    assert time_of(driver) >= to + MINUTE


def test_keys_of_the_poisoned_time_expire_as_if_they_had_been_put_at_the_earlier_one() -> None:
    driver, to = poisoned()
    driver.settings = settings()
    set_back(driver, Minutes, to)
    assert set(driver.table("last")) == {"ann", "eve"}
    driver.feed("bob", timestamp=to + 5 * MINUTE)
    driver.feed("bob", timestamp=to + 5 * MINUTE)
    assert set(driver.table("last")) == {"bob"}
    assert all(until > to + 5 * MINUTE for until in driver.table("seen").values())


def test_the_digest_is_that_of_the_changed_tables() -> None:
    driver, to = poisoned()
    driver.commit()
    state = examined(driver, Minutes, to).state
    again = sum(table_digest(name, table.order, table.stored.values()) for name, table in state.tables.items())
    assert state.digest == again % MODULUS
    assert digest.to_bytes(state.digest) != driver.commit_record().digest


@pytest.mark.parametrize(("to", "partitions"), [(YEAR_2100, ()), (YEAR_2100 + 1, ()), (0, (1,))])
def test_a_partition_whose_time_is_not_later_stays_as_it_is(to: int, partitions: tuple[int, ...]) -> None:
    driver, _ = poisoned()
    driver.commit()
    repaired = examined(driver, Minutes, to, *partitions)
    assert repaired.finding == ""
    assert digest.to_bytes(repaired.state.digest) == driver.commit_record().digest
    named = "named " if partitions else ""
    assert SetTimeBack(to, partitions).nothing() == f"no {named}partition has a time later than {visible_time(to)}"


class Plain(Handler[str]):
    kept = Table(key=str, value=int)

    def on_record(self, record: Record[str]) -> None:
        self.kept[record.value] = record.offset


def test_a_handler_without_a_time_stays_as_it_is() -> None:
    driver = Driver(Plain)
    driver.feed("a", timestamp=YEAR_2100)
    driver.commit()
    assert examined(driver, Plain, 0).finding == ""


class Pairs(Handler[str]):
    pairs = JoinBuffer(timedelta(minutes=1), key=str, left=str, right=str)
    out = Output("out", value=list[str])

    def on_record(self, record: Record[str]) -> None:
        side, _, value = record.value.partition(" ")
        found = (self.pairs.left if side == "left" else self.pairs.right)(record, "key", value)
        self.out.send(sorted(found))


def test_records_of_a_join_that_have_not_left_join_again() -> None:
    """Their segment is not over."""
    driver = Driver(Pairs)
    for number in range(2):
        driver.feed(f"left {number}", timestamp=5_000)
    driver.feed("right poison", timestamp=66_000)
    driver.feed("right late", timestamp=5_500)
    assert driver.outputs("out")[-1] == []
    repaired = set_back(driver, Pairs, 5_000)
    assert "pairs: 2 records join again; 3 are kept, 1 of them are later" in repaired.consequence
    driver.feed("right", timestamp=5_500)
    assert len(driver.outputs("out")[-1]) == 2
