"""How far a restore has come, for the log and for people."""

from __future__ import annotations

from typing import Any

from tests.support.handlers import Accounts, events, many

from statehold.snapshot.restore.progress import Progress
from statehold.testing import Driver
from statehold.testing.memory.clock import ManualClock


def test_a_step_reports_its_place_its_speed_and_its_remaining_time() -> None:
    clock = ManualClock()
    progress = Progress(clock)
    assert progress.view() is None
    progress.enter("full", 100, 300)
    view = progress.view()
    assert view is not None
    assert view["left"] is None, "nothing is known before something was read"
    clock.advance(2.0)
    progress.advance(150, 4000, 50)
    view = progress.view()
    assert view == {
        "step": "full",
        "position": 150,
        "begin": 100,
        "end": 300,
        "bytes": 4000,
        "keys": 0,
        "bytes_per_second": 2000,
        "seconds": 2.0,
        "left": 6.0,
    }


def test_a_step_that_is_over_is_kept_with_what_it_took() -> None:
    clock = ManualClock()
    progress = Progress(clock)
    progress.enter("full", 0, 10)
    clock.advance(1.0)
    progress.advance(10, 500, 10)
    progress.enter("deltas", 5, 9)
    clock.advance(0.5)
    progress.leave()
    assert progress.view() is None
    full, increments = progress.done["full"], progress.done["deltas"]
    assert (full.seconds, full.bytes, full.records) == (1.0, 500, 10)
    assert (increments.seconds, increments.bytes) == (0.5, 0)


def test_progress_is_reported_every_three_seconds_also_while_nothing_comes() -> None:
    clock = ManualClock()
    reported: list[dict[str, Any]] = []
    progress = Progress(clock, reported.append)
    progress.enter("deltas", 0, 1000)
    for _ in range(100):
        clock.advance(0.1)
        progress.tick()
    assert len(reported) == 3
    progress.leave()
    clock.advance(60.0)
    progress.tick()
    assert len(reported) == 3, "no progress continues"


def test_a_long_restore_is_logged() -> None:
    driver = Driver(Accounts)
    for op in many(24):
        driver.feed(op)
    driver.stop()
    driver.broker.on_read = lambda topic, partition: driver.clock.advance(4.0)
    driver.restore()
    reported = {event["step"]: event for event in events(driver, "restore_progress")}
    assert {"commit_record", "full", "deltas"} <= reported.keys()
    assert reported["deltas"]["keys"] == len({op.account for op in many(24)}), "the full was loaded by then"
    assert driver.broker.log(driver.names.snapshot, 0).end >= reported["full"]["end"]
