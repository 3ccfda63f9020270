"""What forgets by the partition's time: tables with a ttl and Dedupe, against plain recomputations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.support import inside
from tests.support.handlers import MODES, Interval, Mode, in_mode

from statehold import Dedupe, Handler, Output, Record, Table
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.system_tables import system_tables
from statehold.bound.table import bind
from statehold.errors import UsageError
from statehold.state.kinds.ttl import SWEEP
from statehold.state.system_names import CLOCK, EXPIRY
from statehold.testing import Driver

INTERVALS: list[Interval] = ["commit", 5.0, "off"]
#: seconds
DEDUPE, TTL = 10, 5

#: key, seconds after the record before, whether the key is deleted
Step = tuple[int, int, bool]
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(-2, 7), st.booleans()), max_size=40)


class Sessions(Handler[list[int]]):
    """Forgets a session five seconds after it was seen, and says what there is at each record."""

    seen = Dedupe(key=int, ttl=timedelta(seconds=DEDUPE))
    open = Table(key=int, value=int, ttl=TTL, sorted=True)
    out = Output("out", value=tuple[bool, list[int]])

    def on_record(self, record: Record[list[int]]) -> None:
        key, ends = record.value
        before = self.seen.seen(key)
        if ends:
            self.open.delete(key)
        else:
            self.open[key] = record.offset
        self.out.send((before, [key for key, _ in self.open.range()]))


def times(steps: Sequence[Step]) -> list[int]:
    """The record's times in milliseconds: some come late."""
    found, now = [], 1_000_000
    for _, seconds, _ in steps:
        now += seconds * 1000
        found.append(now)
    return found


def fold(steps: Sequence[Step]) -> list[tuple[bool, list[int]]]:
    """Return the expected answers, computed without heaps and sweeps."""
    said, now = [], 0
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for (key, _, ends), time in zip(steps, times(steps), strict=True):
        now = max(now, time)
        before = key in first and now < first[key] + DEDUPE * 1000
        if not before:
            first[key] = now
        if ends:
            last.pop(key, None)
        else:
            last[key] = now
        said.append((before, sorted(each for each, at in last.items() if now < at + TTL * 1000)))
    return said


@pytest.mark.parametrize("interval", INTERVALS)
@given(steps=STEPS, crash=st.integers(0, 40), moved=st.integers(0, 40), mode=st.sampled_from(MODES))
@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_keys_expire_by_record_time_in_any_history(
    interval: Interval, steps: list[Step], crash: int, moved: int, mode: Mode
) -> None:
    driver = Driver(Sessions, settings=in_mode(mode, interval), batch=3, autocommit=False)
    for at, ((key, _, ends), time) in enumerate(zip(steps, times(steps), strict=True)):
        if at == moved:
            driver.rebalance()  # the next commit is refused once and undone
        driver.feed([key, int(ends)], timestamp=time)
        if at % 4 == 0:
            driver.commit()
        if at == crash:
            driver.crash()
            driver.restore()
    driver.commit()
    assert driver.outputs("out") == fold(steps)
    before = driver.table("open"), driver.table("seen")
    driver.crash()
    driver.restore()
    assert (driver.table("open"), driver.table("seen")) == before
    if steps:
        driver.replay()


def test_expired_keys_become_tombstones_a_few_with_each_record() -> None:
    driver = Driver(Sessions, autocommit=False)
    for key in range(50):
        driver.feed([key, 0], timestamp=1_000_000)
    driver.commit()
    cost = inside.lanes(driver)[0].live().full_snapshots.cost
    before = cost.work.entries
    driver.feed([99, 0], timestamp=2_000_000)
    driver.commit()
    assert driver.outputs("out")[-1] == (False, [99])
    state = inside.lanes(driver)[0].engine().state
    assert len(state.tables["open"].stored) == 51 - SWEEP
    assert cost.work.entries - before == 3 * SWEEP + 4, "sessions, their expiry and seen; the new ones; the clock"
    for key in range(100, 110):
        driver.feed([key, 0], timestamp=2_000_000)
    driver.commit()
    assert set(state.tables["open"].stored) == {99, *range(100, 110)} == set(state.tables[f"{EXPIRY}open"].stored)
    assert set(state.tables["seen"].stored) == {99, *range(100, 110)}


def test_a_key_that_is_put_again_and_again_takes_one_entry() -> None:
    driver = Driver(Sessions, autocommit=False)
    for second in range(2000):
        driver.feed([1, 0], timestamp=1_000_000 + second)
    driver.commit()
    table = inside.lanes(driver)[0].engine().state.tables[f"{EXPIRY}open"]
    assert len(table._index) == 1  # type: ignore[attr-defined]


class Few(Handler[int]):
    seen = Dedupe(key=int, ttl=100, most=3)
    out = Output("out", value=bool)

    def on_record(self, record: Record[int]) -> None:
        self.out.send(self.seen.seen(record.value))


def test_a_dedupe_keeps_a_maximum_and_forgets_the_oldest() -> None:
    driver = Driver(Few)
    for at, value in enumerate([1, 2, 3, 1, 4, 1, 3, 4]):
        driver.feed(value, timestamp=1000 + at)
    assert driver.outputs("out") == [False, False, False, True, False, False, True, True]
    assert set(driver.table("seen")) == {1, 3, 4}


def test_nothing_is_declared_for_a_handler_that_uses_nothing() -> None:
    class Plain(Handler[int]):
        there = Table(key=str, value=int)

        def on_record(self, record: Record[int]) -> None: ...

    assert set(tables_and_outputs(Plain)[0]) == {"there"}
    assert inside.lane(Driver(Plain)).engine().event_time is None
    assert set(tables_and_outputs(Sessions)[0]) == {"seen", "open", CLOCK, f"{EXPIRY}open"}
    assert set(tables_and_outputs(Few)[0]) == {"seen", CLOCK}


def test_reserved_names_and_batches_are_rejected() -> None:
    with pytest.raises(UsageError, match="are statehold's own"):
        system_tables(Few, {"statehold.mine": bind(Table(key=str, value=int))})

    class Batched(Few):
        def on_batch(self, records: Sequence[Record[int]]) -> None: ...

    with pytest.raises(UsageError, match="time passes from record to record"):
        tables_and_outputs(Batched)
    with pytest.raises(UsageError, match="ttl must be above 0"):
        Dedupe(key=int, ttl=0)
