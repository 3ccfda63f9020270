"""A record from the future: it keeps its timestamp and moves no time, or its policy decides; a replay repeats that."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import inside
from tests.support.handlers import Interval, commit_records, events
from tests.support.rehearsing import compared, rehearsed
from tests.support.shadowing import DriverShadow

from statehold import Dedupe, Handler, Output, Record, Sink, Table, Timer, Tumbling, dead_letter, on, retry, stop
from statehold.config.sections.effects_timers_sinks import TimeSettings
from statehold.config.sections.processing import CommitSettings, SnapshotSettings
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings
from statehold.errors import TimestampAhead
from statehold.messages.command import FINISH_UPGRADE
from statehold.snapshot.format import frame
from statehold.telemetry import metrics
from statehold.testing import Driver
from statehold.worker.status import LiveStatus

INTERVALS: list[Interval] = ["commit", 5.0, "off"]
YEAR_2100 = 4_102_444_800_000
MINUTE = 60_000
HOUR = 60 * MINUTE


class Row(msgspec.Struct, frozen=True):
    name: str
    offset: int


class Timed(Handler[Any]):
    """Whatever goes by the partition's time: windows, timers, keys that expire, duplicates."""

    counts = Tumbling(timedelta(minutes=1), key=str, value=int)
    last = Table(key=str, value=int, ttl=timedelta(minutes=5))
    seen = Dedupe(key=str, ttl=timedelta(minutes=5))
    out = Output("out", value=str)

    def handle(self, record: Record[str]) -> None:
        if self.seen.seen(f"{record.value} {record.offset % 5}"):
            self.out.send("seen")
        self.counts.update(record, record.value, lambda count: (count or 0) + 1)
        before = self.last.get(record.value)
        self.last[record.value] = record.offset
        self.schedule(record.now + timedelta(minutes=2), record.value, id=record.value)
        self.out.send(f"{record.value} after {before}")

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.out.send(f"{key} closed with {value}")

    def on_timer(self, timer: Timer) -> None:
        self.out.send(f"{timer.id} is due")

    def on_late(self, name: str, key: str, record: Record[str]) -> None:
        self.out.send(f"{key} is late")


class Minutes(Timed):
    def on_record(self, record: Record[str]) -> None:
        self.handle(record)


class Rejecting(Minutes):
    on_failure: ClassVar = {TimestampAhead: dead_letter()}


class TwoInputs(Timed):
    @on("one", value=str)
    def one(self, record: Record[str]) -> None:
        self.handle(record)

    @on("two", value=str)
    def two(self, record: Record[str]) -> None:
        self.handle(record)


class Stored(Minutes):
    """Writes to a database, too: what closes, and where."""

    rows = Sink("rows", value=Row, key="name")

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.rows.put(Row(f"{key} {start}", value))

    def on_record(self, record: Record[str]) -> None:
        self.rows.put(Row(record.value, record.offset))
        super().on_record(record)


def settings(interval: Interval = "commit", max_ahead: Any = 3600.0, mode: Any = "production") -> Settings:
    return Settings(
        service=ServiceSettings(mode=mode),
        snapshot=SnapshotSettings(delta_interval=interval),
        commit=CommitSettings(max_records=100),
        time=TimeSettings(max_ahead=max_ahead),
    )


def driver_of(interval: Interval = "commit", kind: type[Handler[Any]] = Minutes, **changes: Any) -> Driver:
    return Driver(kind, settings=settings(interval, **changes))


def now(driver: Driver) -> int:
    return int(driver.clock.wall() * 1000)


def time_of(driver: Driver) -> int:
    driver.commit()
    clock: Any = inside.lane(driver).engine().state.tables["statehold.clock"]
    found: int = clock.now
    return found


def counted(driver: Driver, what: str) -> float:
    labels = {"service": driver.names.group, "partition": "0", "time": what}
    return driver.metrics.registry.get_sample_value(metrics.RECORDS_AHEAD.name, labels) or 0.0


def feed(driver: Driver) -> None:
    """Records around the present, and some from the future."""
    for step in range(12):
        driver.feed("ann", key="ann", timestamp=now(driver))
        if step % 4 == 1:
            driver.feed("eve", key="eve", timestamp=YEAR_2100 + step)
        driver.feed("bob", key="bob", timestamp=now(driver) - 30_000)
        driver.advance(20.0)


@pytest.mark.parametrize("interval", INTERVALS)
def test_a_record_from_the_future_moves_no_time(interval: Interval) -> None:
    driver = driver_of(interval)
    driver.feed("ann", timestamp=now(driver))
    driver.feed("eve", timestamp=YEAR_2100)
    driver.feed("ann", timestamp=now(driver) - 30_000)
    assert time_of(driver) == now(driver)
    assert driver.outputs("out") == ["ann after None", "eve after None", "ann after 0"]
    assert {key[0] for key in driver.table("counts")} == {"ann", "eve"}
    assert ("eve", YEAR_2100, YEAR_2100 + MINUTE) in driver.table("counts"), "the record keeps its timestamp"
    assert counted(driver, "held") == 1


@pytest.mark.parametrize("interval", INTERVALS)
def test_without_a_limit_it_closes_every_window(interval: Interval) -> None:
    driver = driver_of(interval, max_ahead="off")
    driver.feed("ann", timestamp=now(driver))
    driver.feed("eve", timestamp=YEAR_2100)
    driver.feed("ann", timestamp=now(driver))
    assert time_of(driver) == YEAR_2100
    assert "ann closed with 1" in driver.outputs("out")
    assert driver.outputs("out")[-2:] == ["ann is late", "ann after None"]
    assert [events(driver, "record_ahead"), counted(driver, "advanced")] == [[], 0]


@pytest.mark.parametrize("interval", INTERVALS)
def test_each_restore_and_replay_repeats_the_decisions_although_the_clock_has_moved_on(interval: Interval) -> None:
    driver = driver_of(interval)
    feed(driver)
    driver.commit()
    state, limits = driver.commit_record().digest, [record.time_limit for record in commit_records(driver, past=True)]
    assert sum(limit > 0 for limit in limits) == 3
    driver.clock.advance(100 * 365 * 86_400.0)  # a replay that asked the clock would let each record advance the time
    driver.crash()
    driver.restore()
    assert driver.commit_record().digest == state
    driver.replay()
    driver.feed("ann", timestamp=now(driver))
    assert time_of(driver) == now(driver)


@pytest.mark.parametrize("interval", INTERVALS)
def test_a_release_without_the_setting_repeats_the_decisions_of_the_one_before(interval: Interval) -> None:
    driver = driver_of(interval)
    feed(driver)
    driver.commit()
    state = driver.commit_record().digest
    driver.crash()
    driver.settings = replace(driver.settings, time=TimeSettings())
    driver.restore()
    driver.replay()
    assert driver.commit_record().digest == state
    driver.feed("eve", timestamp=YEAR_2100)
    assert time_of(driver) == YEAR_2100, "from now on nothing is limited"


@given(
    steps=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 6), st.booleans()), max_size=40),
    interval=st.sampled_from(INTERVALS),
)
def test_in_any_history_the_time_never_passes_the_clock_by_more_than_the_limit(
    steps: list[tuple[str, int, bool]], interval: Interval
) -> None:
    """Hours around the limit of three, crashes, and commits that the broker rejects."""
    driver = driver_of(interval, max_ahead=3 * 3600.0)
    highest = 0
    for key, hours, breaks in steps:
        at = now(driver) + hours * HOUR
        driver.feed(key, key=key, timestamp=at)
        highest = max(highest, at) if hours <= 3 else highest
        if breaks:
            driver.rebalance()
        driver.advance(600.0)
        if breaks and hours < 0:
            driver.crash()
            driver.restore()
        assert time_of(driver) <= now(driver) + 3 * HOUR
        assert time_of(driver) >= highest
    driver.replay([3, 1])


def test_a_command_of_the_input_from_the_future_moves_no_time() -> None:
    driver = driver_of(5.0)
    driver.feed("ann", timestamp=now(driver))
    log = driver.broker.log(driver.names.input, 0)
    log.append(None, None, [("statehold-command", b"take")], YEAR_2100)
    driver.feed("ann", timestamp=now(driver))
    assert time_of(driver) == now(driver)
    assert counted(driver, "held") == 1
    driver.crash()
    driver.restore()
    driver.replay()


def test_one_transaction_has_one_limit() -> None:
    """The clock moves on within a transaction: after a record was held back, the limit stays where it was."""
    driver = driver_of("off")
    limit = now(driver) + HOUR
    driver.feed("eve", timestamp=limit + 30)
    driver.clock.advance(0.05)
    driver.feed("ann", timestamp=limit + 40)
    assert time_of(driver) == 0
    assert driver.commit_record().time_limit == limit
    driver.feed("ann", timestamp=limit + 40)
    assert time_of(driver) == limit + 40, "the next transaction asks the clock again"
    driver.crash()
    driver.restore()
    driver.replay()


def test_a_transaction_without_such_a_record_keeps_no_limit() -> None:
    driver = driver_of("off")
    for _ in range(5):
        driver.feed("ann", timestamp=now(driver) + HOUR)
        driver.advance(10.0)
    driver.commit()
    assert {record.time_limit for record in commit_records(driver, past=True)} == {0}


def test_a_policy_for_timestamp_ahead_gets_the_record() -> None:
    driver = driver_of(kind=Rejecting)
    driver.feed("ann", key="ann", timestamp=now(driver))
    driver.feed("eve", key="eve", timestamp=YEAR_2100)
    driver.feed("ann", key="ann", timestamp=now(driver))
    assert time_of(driver) == now(driver)
    (dead,) = driver.dead_letters()
    assert (dead.error, dead.offset) == ("TimestampAhead", 1)
    assert "2100-01-01T00:00:00.000Z is 27" in dead.text
    assert {key[0] for key in driver.table("counts")} == {"ann"}
    assert {record.time_limit for record in commit_records(driver)} == {0}
    driver.clock.advance(100 * 365 * 86_400.0)
    driver.crash()
    driver.restore()
    driver.replay()


def test_with_stop_the_partition_waits_until_the_clock_has_come_nearer() -> None:
    class Stopping(Minutes):
        on_failure: ClassVar = {TimestampAhead: stop()}

    driver = driver_of(kind=Stopping)
    with pytest.raises(TimestampAhead, match=r"@0: its timestamp .* is 1:59:59 h ahead|is 2:00:00 h ahead") as raised:
        driver.feed("eve", timestamp=now(driver) + 2 * HOUR)
    assert "time.max_ahead allows 1:00:00 h. The record was rolled back, and nothing was skipped" in str(raised.value)
    driver.clock.advance(3600.0)
    driver.restore()
    assert time_of(driver) == now(driver) + HOUR


def test_a_policy_for_every_exception_leaves_such_records_alone() -> None:
    class Retrying(Minutes):
        on_failure: ClassVar = {Exception: retry(1, seconds=0.0)}

    driver = driver_of(kind=Retrying)
    driver.feed("eve", timestamp=YEAR_2100)
    assert time_of(driver) == 0
    assert counted(driver, "held") == 1


def test_the_event_names_the_record_at_most_once_a_minute() -> None:
    driver = driver_of()
    for _ in range(3):
        driver.feed("eve", timestamp=YEAR_2100)
        driver.commit()
    (event,) = events(driver, "record_ahead")
    assert {name: event[name] for name in ("input", "offset", "timestamp", "records", "advanced")} == {
        "input": "input",
        "offset": 0,
        "timestamp": "2100-01-01T00:00:00.000Z",
        "records": 1,
        "advanced": False,
    }
    driver.advance(61.0)
    driver.feed("eve", timestamp=YEAR_2100)
    driver.commit()
    assert [event["records"] for event in events(driver, "record_ahead")] == [1, 3]
    assert counted(driver, "held") == 4
    driver.crash()
    driver.restore()
    assert counted(driver, "held") == 4, "a replay counts none again"


def test_in_development_a_record_of_more_than_an_hour_ahead_is_logged_and_advances_the_time() -> None:
    driver = driver_of(max_ahead="off", mode="development")
    driver.feed("ann", timestamp=now(driver) + HOUR)
    driver.commit()
    assert events(driver, "record_ahead") == []
    driver.feed("eve", timestamp=YEAR_2100)
    driver.feed("eve", timestamp=YEAR_2100)
    assert time_of(driver) == YEAR_2100
    (event,) = events(driver, "record_ahead")
    assert (event["advanced"], event["records"]) == (True, 1)
    assert "set time.max_ahead" in event["cause"]
    assert counted(driver, "advanced") == 1
    assert driver.commit_record().time_limit == 0


def test_an_older_format_keeps_no_limit_and_says_so() -> None:
    class Old(Driver):
        _format = frame.LIMITED - 1

    driver = Old(Minutes, settings=settings("off"))
    start = now(driver)
    driver.feed("ann", timestamp=start + 2 * HOUR)
    assert time_of(driver) == start + 2 * HOUR
    (event,) = events(driver, "record_ahead")
    assert "Next: run `statehold finish-upgrade`" in event["cause"]
    driver.command(FINISH_UPGRADE)
    driver.commit()
    driver.feed("eve", timestamp=YEAR_2100)
    assert time_of(driver) == start + 2 * HOUR
    driver.crash()
    driver.restore()
    driver.replay()


@pytest.mark.parametrize("interval", INTERVALS)
def test_records_of_several_inputs(interval: Interval) -> None:
    driver = driver_of(interval, TwoInputs)
    for step in range(8):
        driver.feed("ann", timestamp=now(driver), input="one")
        driver.feed("eve", timestamp=YEAR_2100 if step % 3 == 1 else now(driver), input="two")
        driver.advance(20.0)
    driver.commit()
    assert time_of(driver) < now(driver)
    driver.clock.advance(100 * 365 * 86_400.0)
    driver.crash()
    driver.restore()
    driver.replay()


@pytest.mark.parametrize("released", [3600.0, "off"])
@pytest.mark.parametrize("interval", INTERVALS)
def test_a_transaction_that_only_the_database_has_is_repeated_with_its_limit(interval: Interval, released: Any) -> None:
    driver = driver_of(interval, Stored)
    driver.feed("ann", key="ann", timestamp=now(driver) - 3 * MINUTE)
    driver.feed("eve", key="eve", timestamp=YEAR_2100)
    driver.feed("ann", key="ann", timestamp=now(driver))
    driver.broker.fail("commit", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        driver.commit()
    driver.crash()
    started = now(driver)
    driver.clock.advance(100 * 365 * 86_400.0)
    driver.settings = replace(driver.settings, time=TimeSettings(max_ahead=released))
    driver.restore()
    driver.commit()
    assert driver.commit_record().time_limit == started + HOUR
    assert time_of(driver) == started
    driver.feed("ann", key="ann", timestamp=now(driver))
    assert time_of(driver) == now(driver), "the next one is decided live"
    driver.replay()


@pytest.mark.parametrize("rejects", [False, True])
def test_what_was_accepted_stays_so_although_the_clock_has_gone_back(rejects: bool) -> None:
    driver = driver_of(kind=Rejecting if rejects else Minutes, max_ahead=60.0)
    driver.feed("ann", key="ann", timestamp=now(driver) + 50_000)
    driver.advance(1.0)
    driver.crash()
    driver.clock.advance(-40.0)
    driver.restore()
    driver.replay()
    assert driver.dead_letters() == []


def test_a_standby_replica_takes_over_with_the_limits_after_its_last_delta() -> None:
    driver = driver_of(500.0)
    driver.feed("ann", key="ann", timestamp=now(driver))
    driver.advance(1.0)
    driver.stand_by()
    feed(driver)
    driver.commit()
    driver.stand_by()
    state = driver.commit_record()
    assert state.last_delta < state.n
    driver.clock.advance(100 * 365 * 86_400.0)
    driver.crash()
    driver.restore()
    assert [fields["from_standby"] for fields in events(driver, "restored")][-1]
    assert driver.commit_record().digest == state.digest


@pytest.mark.parametrize("kind", [Minutes, Rejecting])
def test_a_rehearsal_and_a_shadow_repeat_the_decisions(kind: type[Handler[str]]) -> None:
    driver = driver_of(kind=kind)
    driver.feed("ann", key="ann", timestamp=now(driver))
    driver.advance(6)
    driver.take_full()
    shadow = DriverShadow(driver, kind)
    shadow.look()
    feed(driver)
    for found in (rehearsed(driver, kind), shadow.look()):
        assert (found.verdict, found.examples) == ("equal", [])
        assert compared(found, "outputs", "out").compared > 20


def test_a_rolled_back_record_is_counted_with_the_commit_that_keeps_it() -> None:
    class Failing(Minutes):
        on_failure: ClassVar = {ConnectionError: retry(3, seconds=0.0)}
        down: ClassVar = [True, True]

        def on_record(self, record: Record[str]) -> None:
            if record.value == "ann" and self.down:
                self.down.pop()
                raise ConnectionError("down")
            self.handle(record)

    driver = driver_of(kind=Failing)
    driver.feed("eve", timestamp=YEAR_2100)
    driver.feed("ann", timestamp=now(driver))
    driver.rebalance()
    driver.commit()
    assert events(driver, "rolled_back")
    assert counted(driver, "held") == 1
    assert sum(record.time_limit > 0 for record in commit_records(driver)) == 1


def test_the_status_of_a_live_partition_has_its_time() -> None:
    driver = driver_of()
    assert LiveStatus.of(inside.lane(driver).live()).time is None
    driver.feed("ann", timestamp=now(driver) + 5_000)
    driver.feed("eve", timestamp=YEAR_2100)
    driver.commit()
    assert LiveStatus.of(inside.lane(driver).live()).time == (now(driver) + 5_000) / 1000
