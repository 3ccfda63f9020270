"""Timestamps and due times that no calendar has: before the year 1, after 9999, at the ends of 64 bits."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

import pytest
from tests.driver.test_records_ahead import YEAR_2100, Minutes, settings
from tests.support import inside

from statehold import Handler, JoinBuffer, Output, Record, Session, Timer, Tumbling, dead_letter
from statehold.common.visible import distance, visible_time
from statehold.errors import HandlerFailed
from statehold.ops.cli.common.output import moment
from statehold.testing import Driver
from statehold.worker.status import LiveStatus

YEAR_10000 = 253_402_300_800_000
#: seconds taken for milliseconds and nanoseconds taken for them, and the ends of 64 bits
WILD = [-(2**63), -(10**15), -1, 0, 1_750_000_000, 1_750_000_000 * 10**9, YEAR_10000, 2**63 - 1]


class Everything(Handler[str]):
    """Uses the timestamp without a calendar."""

    counts = Tumbling(timedelta(minutes=1), key=str, value=int)
    visits = Session(timedelta(minutes=1), merge=lambda a, b: a + b, key=str, value=int)
    pairs = JoinBuffer(timedelta(minutes=1), key=str, left=str, right=str)
    out = Output("out", value=str)

    def on_record(self, record: Record[str]) -> None:
        self.counts.update(record, record.value, lambda count: (count or 0) + 1)
        self.visits.update(record, record.value, lambda count: (count or 0) + 1)
        found = self.pairs.left(record, "key") + self.pairs.right(record, "key")
        self.schedule(record.timestamp, None, id=f"{record.offset}")
        self.out.send(f"{record.value} {len(found)}")

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.out.send(f"{name} {key} {start} {value}")

    def on_timer(self, timer: Timer) -> None:
        self.out.send(f"{timer.id} due {timer.due}")


@pytest.mark.parametrize("limit", ["off", 3600.0])
@pytest.mark.parametrize("time", WILD)
def test_a_wild_timestamp_fails_nothing_that_uses_it_as_a_number(time: int, limit: object) -> None:
    driver = Driver(Everything, settings=settings("off", max_ahead=limit))
    driver.feed("ann")
    driver.feed("eve", timestamp=time)
    driver.feed("ann")
    driver.commit()
    LiveStatus.of(inside.lane(driver).live())
    said = driver.outputs("out")
    driver.crash()
    driver.restore()
    driver.replay()
    driver.feed("ann")
    assert driver.outputs("out")[: len(said)] == said


class Fragile(Minutes):
    """A timer of a time that no calendar has, which fails."""

    on_failure: ClassVar = {Exception: dead_letter()}
    due: ClassVar[int] = -(10**15)

    def on_record(self, record: Record[str]) -> None:
        if record.value == "set":
            self.schedule(self.due, None, id="t")

    def on_timer(self, timer: Timer) -> None:
        raise ValueError("not now")


def test_a_timer_of_no_calendar_that_fails_is_no_fault_of_the_record() -> None:
    driver = Driver(Fragile)
    driver.feed("set", key="k", timestamp=1_000)
    with pytest.raises(HandlerFailed, match=r"not now, in on_timer of 't', due -1000000000000000 ms after 1970"):
        driver.feed("innocent", key="k", timestamp=2_000)
    assert driver.dead_letters() == []


@pytest.mark.parametrize("time", WILD)
def test_every_time_has_a_text(time: int) -> None:
    assert moment(time) == visible_time(time)


def test_texts_of_times() -> None:
    assert visible_time(YEAR_2100) == "2100-01-01T00:00:00.000Z"
    assert visible_time(2**63 - 1) == "9223372036854775807 ms after 1970"
    assert [distance(each) for each in (999, 61_000, 86_399_999, 86_400_000, 2 * 86_400_000)] == [
        "0:00:00 h",
        "0:01:01 h",
        "23:59:59 h",
        "1 day",
        "2 days",
    ]
