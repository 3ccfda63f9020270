"""Timers: due by the records' time, or by a clock that the marks pin; a replay hears the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.support.handlers import Interval, commit_records, events

from statehold import Handler, Output, Record, Table, Timer
from statehold.errors import HandlerFailed, TransactionAborted, UsageError
from statehold.messages.command import FINISH_UPGRADE, TICK, header
from statehold.snapshot.format import frame
from statehold.testing import Driver

INTERVALS: list[Interval] = ["commit", 5.0, "off"]
#: milliseconds after its record that a timer is due, and after a timer that its successor is
FIRST, AGAIN = 8_000, 20_000


class Sums(Handler[int]):
    """Adds up, and says eight seconds after each record what the sum is; a timer of 7 has a successor."""

    sums = Table(key=str, value=int)
    out = Output("out", value=str)

    def on_record(self, record: Record[int]) -> None:
        if record.value < 0:
            self.out.send(f"cancelled {self.cancel(str(-record.value))}")
            return
        self.sums["now"] = self.sums.get("now", 0) + record.value
        self.schedule(record.timestamp + FIRST, {"of": record.value}, id=str(record.value))

    def on_timer(self, timer: Timer) -> None:
        self.out.send(f"{timer.id} due {timer.due} sum {self.sums['now']}")
        self.sums["now"] = 0
        if timer.id == "7":
            self.schedule(timer.due + AGAIN, timer.payload, id="again")
        self.effect(tell, timer.id)


def tell(key: tuple[str, int, int, int], id: str) -> None:
    """An external system."""


def recomputed(driver: Driver) -> list[str]:
    """The expected timers, from the input and the ticks that the commit records name, without tables."""
    said: list[str] = []
    heap: list[tuple[int, str]] = []
    due: dict[str, int] = {}
    total = now = read = 0

    def pass_(time: int) -> None:
        nonlocal now, total
        now = max(now, time)
        while heap and heap[0][0] <= now:
            at, name = heappop(heap)
            if due.get(name) != at:
                continue
            del due[name]
            said.append(f"{name} due {at} sum {total}")
            total = 0
            if name == "7":
                due["again"] = at + AGAIN
                heappush(heap, (at + AGAIN, "again"))

    values = {message.offset(): message for message in driver.broker.log("input", 0).committed()}
    for commit_record in commit_records(driver):
        for offset in range(read, commit_record.positions["input"]):
            message = values[offset]
            pass_(message.timestamp()[1])
            value = int(message.value() or b"")
            if value < 0:
                said.append(f"cancelled {due.pop(str(-value), None) is not None}")
                continue
            total += value
            due[str(value)] = message.timestamp()[1] + FIRST
            heappush(heap, (due[str(value)], str(value)))
        read = commit_record.positions["input"]
        for pinned in commit_record.pinned:
            pass_(pinned.time)
    return said


#: a value to feed (a negative one cancels) or seconds to wait, and whether the owner is killed after it
STEPS = st.lists(st.tuples(st.one_of(st.integers(-9, 9), st.floats(0.1, 30.0)), st.booleans()), max_size=15)


@pytest.mark.parametrize("interval", INTERVALS)
@given(steps=STEPS, rejected=st.integers(0, 15))
@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_timer_fires_once_at_its_place_with_any_owner(
    interval: Interval, steps: list[tuple[int | float, bool]], rejected: int
) -> None:
    driver = Driver(Sums, delta_interval=interval, batch=3, autocommit=False)
    for at, (step, crash) in enumerate(steps):
        if at == rejected:
            driver.rebalance()
        if isinstance(step, int):
            driver.feed(step)
        else:
            driver.advance(step)
        if crash:
            driver.crash()
            driver.restore()
    driver.advance(60.0)
    assert driver.outputs("out") == recomputed(driver)
    assert driver.table("statehold.timers") == {}, "all have fired: the partition was idle for long enough"
    before = driver.table("sums"), driver.table("statehold.clock")
    driver.crash()
    driver.restore()
    assert (driver.table("sums"), driver.table("statehold.clock")) == before
    fired = {each.key for each in driver.effects}
    assert len(fired) == len([said for said in driver.outputs("out") if "due" in said])
    if steps:
        driver.replay()


@pytest.mark.parametrize("interval", INTERVALS)
def test_an_idle_partition_goes_by_a_clock_that_its_commit_record_pins(interval: Interval) -> None:
    driver = Driver(Sums, delta_interval=interval)
    driver.feed(3)
    driver.advance(7.0)
    assert driver.outputs("out") == []
    driver.advance(10.0)
    assert len(driver.outputs("out")) == 1
    (tick,) = [pinned for commit_record in commit_records(driver) for pinned in commit_record.pinned]
    assert tick.headers == (header(TICK),)
    assert tick.time == tick.offset == driver.table("statehold.clock")["now"]
    assert len(commit_records(driver)) < 10, "one transaction for it, none without need"
    driver.crash()
    driver.restore()
    assert driver.table("sums") == {"now": 0}
    assert len(driver.outputs("out")) == 1


def test_a_busy_partition_goes_by_its_records() -> None:
    driver = Driver(Sums)
    driver.feed(3, timestamp=1_000_000)  # long before the driver's clock: it is behind
    for second in range(20):
        driver.feed(1, timestamp=1_001_000 + second)
        driver.advance(1.0)
    assert driver.outputs("out") == []
    assert not any(commit_record.pinned for commit_record in commit_records(driver))
    driver.feed(1, timestamp=1_008_000)
    assert driver.outputs("out") == ["3 due 1008000 sum 23"]


def test_a_tick_waits_while_the_partition_is_paused() -> None:
    driver = Driver(Sums)
    driver.feed(3)
    driver.command("pause", via_control_topic=True)
    driver.advance(60.0)
    assert driver.commit_record().paused is not None
    assert driver.outputs("out") == []
    driver.command("resume", via_control_topic=True)
    driver.advance(5.0)
    assert len(driver.outputs("out")) == 1


class _Older(Driver):
    _format = 2


def test_in_an_older_format_no_clock_is_pinned_until_the_upgrade_is_finished() -> None:
    driver = _Older(Sums)
    driver.feed(3)
    driver.advance(60.0)
    assert driver.outputs("out") == []
    assert len(events(driver, "timers_wait")) == 1
    driver.command(FINISH_UPGRADE)
    driver.advance(30.0)
    assert driver.commit_record().format == frame.NEWEST
    assert len(driver.outputs("out")) == 1


class Failing(Handler[int]):
    out = Output("out", value=str)
    broken = True

    def on_record(self, record: Record[int]) -> None:
        self.out.send("record")
        self.schedule(record.now + timedelta(seconds=1))

    def on_timer(self, timer: Timer) -> None:
        self.out.send("half")
        if self.broken:
            raise ValueError("cannot do that")


def test_an_on_timer_that_raises_is_undone_and_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(Failing)
    driver.feed(1)
    with pytest.raises(HandlerFailed, match="cannot do that") as failed:
        driver.advance(20.0)
    assert ", in on_timer of" in str(failed.value)
    driver.restore()
    with pytest.raises(HandlerFailed):
        driver.advance(20.0)
    monkeypatch.setattr(Failing, "broken", False)
    driver.restore()
    driver.advance(20.0)
    assert driver.outputs("out") == ["record", "half"]
    driver.replay()


def test_an_abort_leaves_no_trace_in_the_ids_of_timers() -> None:
    digests = []
    for aborted in (False, True):
        driver = Driver(Failing)
        if aborted:
            driver.broker.fail("offsets", TransactionAborted("no"))
        driver.feed(1)
        driver.commit()
        assert len(events(driver, "rolled_back")) == aborted
        digests.append(driver.commit_record().digest)
    assert digests[0] == digests[1]


def test_an_impossible_timer_is_rejected() -> None:
    class NoTimer(Handler[int]):
        def on_record(self, record: Record[int]) -> None:
            self.schedule(0)

    class NoZone(Failing):
        def on_record(self, record: Record[int]) -> None:
            self.schedule(datetime(2030, 1, 1))  # noqa: DTZ001

    class NoData(Failing):
        def on_record(self, record: Record[int]) -> None:
            self.schedule(datetime(2030, 1, 1, tzinfo=UTC), object())

    for kind, said in ((NoTimer, "has no on_timer"), (NoZone, "without a zone"), (NoData, "plain data")):
        with pytest.raises(HandlerFailed, match=said):
            Driver(kind).feed(1)
    with pytest.raises(UsageError, match="belongs to a record"):
        Driver(Failing).handler().schedule(0)


def test_only_the_owner_moves_the_clock() -> None:
    driver = Driver(Sums)
    driver.feed(3, timestamp=1_000_000)
    driver.commit()
    control = driver.broker.log(driver.names.control, 0)
    control.append(None, None, [header(TICK)], 9_000_000)
    driver.advance(2.0)
    assert driver.table("statehold.clock") == {"now": 1_000_000}
    assert not any(commit_record.pinned for commit_record in commit_records(driver))


@pytest.mark.parametrize("via_control_topic", [False, True])
def test_only_a_command_of_the_input_advances_the_time(via_control_topic: bool) -> None:
    class Due(Sums):
        def on_command(self, command: str, record: Record[bytes]) -> None:
            self.out.send(command)

    driver = Driver(Due)
    driver.feed(1, timestamp=1_000)  # long before the command
    driver.command("report", via_control_topic=via_control_topic)
    driver.feed(2, timestamp=2_000)
    assert "report" in driver.outputs("out")
    assert ("1 due 9000 sum 1" in driver.outputs("out")) == (not via_control_topic)
