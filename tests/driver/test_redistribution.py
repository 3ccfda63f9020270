"""What goes by time is dealt to other partitions along with the keys that it is about."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from tests.support import inside

from statehold import Dedupe, Handler, Record, Table, Timer, dead_letter
from statehold.admin.state.key_layout import KeyLayout, drop_partition_data
from statehold.common.partitioner import murmur2
from statehold.errors import UsageError
from statehold.messages.dead_letter import RESOLVED
from statehold.state.system_names import CLOCK, EXPIRY, TIMERS
from statehold.testing import Driver


class Carts(Handler[str]):
    seen = Dedupe(key=str, ttl=100)
    carts = Table(key=str, value=int, ttl=100)

    def on_record(self, record: Record[str]) -> None:
        if not self.seen.seen(record.value):
            self.carts[record.value] = record.offset
            self.schedule(record.timestamp + 50_000, record.value)

    def on_timer(self, timer: Timer) -> None:
        self.schedule(timer.due + 50_000, timer.payload, id="next " + timer.id)


def redistributed(driver: Driver, to: int) -> list[dict[str, set[Any]]]:
    found: list[dict[str, set[Any]]] = [{} for _ in range(to)]
    state = inside.lanes(driver)[0].engine().state
    drop_partition_data(state)
    for there, changes in KeyLayout(murmur2, {}, state.tables).redistribute(state, 0, 1, to):
        found[there].setdefault(changes.table, set()).update(changes.keys)
    return found


def test_expiry_goes_with_its_key_and_a_timer_with_its_record() -> None:
    driver = Driver(Carts)
    keys = [f"k{number}" for number in range(40)]
    for key in keys:
        driver.feed(key, key=key, timestamp=1_000_000)
    driver.feed(keys[0], key="k0", timestamp=1_060_000)  # the timers fire, and schedule others for the same keys
    driver.commit()
    timers = {name: timer.payload for name, timer in driver.table(TIMERS).items()}
    assert all(name.startswith("next ") for name in timers)
    parts = redistributed(driver, 4)
    for there, part in enumerate(parts):
        mine = {key for key in keys if murmur2(key.encode(), 4) == there}
        assert part["carts"] == part["seen"] == part[f"{EXPIRY}carts"] == mine
        assert {timers[name] for name in part[TIMERS]} == mine
        assert CLOCK not in part, "a partition's own time goes nowhere"


def test_a_timer_of_a_record_without_a_key_belongs_nowhere() -> None:
    driver = Driver(Carts)
    driver.feed("a", timestamp=1_000_000)
    driver.commit()
    with pytest.raises(UsageError, match="is not a record key"):
        redistributed(driver, 4)


class DeadLetters(Handler[str]):
    on_failure: ClassVar = {ValueError: dead_letter()}
    counts = Table(key=str, value=int)

    def on_record(self, record: Record[str]) -> None:
        if record.value == "bad":
            raise ValueError(record.value)
        self.counts[record.value] = record.offset


def test_resolved_dead_letters_stay_with_their_partition() -> None:
    driver = Driver(DeadLetters)
    driver.feed("a", key="a")
    driver.feed("bad")  # without a key: it parks nothing
    driver.release(discard=True, why="a test")
    driver.advance(1)
    assert driver.table(RESOLVED) == {1: 1}
    assert set().union(*redistributed(driver, 2)) == {"counts"}
