"""A partition keeps its restore time within `snapshot.restore_budget`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from tests.support import inside
from tests.support.handlers import Accounts, Op, agrees, events, many

from statehold import Record
from statehold.config.settings import Settings
from statehold.snapshot.format.records import COMPACTION
from statehold.snapshot.full import FullWriter
from statehold.snapshot.restore.estimate import Speed, Workload
from statehold.testing import Driver
from statehold.testing.memory.clients import MemoryFullSink

#: a machine on which a delta of one key takes about a quarter of a second
SLOW = Speed(fixed=0.0, full=1.0, increments=10_000.0, digest=1.0)


def budgeted(**snapshot: Any) -> Driver:
    settings = Settings()
    snapshot = {"restore_budget": 5.0, "full_interval": 86_400.0} | snapshot
    driver = Driver(Accounts, settings=replace(settings, snapshot=replace(settings.snapshot, **snapshot)))
    driver.speeds.now = SLOW
    return driver


def feed_singly(driver: Driver, ops: list[Op]) -> list[float]:
    """One transaction each; the predicted restore time after each."""
    predicted = []
    for op in ops:
        driver.feed(op)
        driver.commit()
        predicted.append(predicted_now(driver))
    return predicted


def test_a_full_snapshot_is_taken_before_the_budget_is_exceeded() -> None:
    driver, ops = budgeted(), many(200)
    predicted = feed_singly(driver, ops)
    assert max(predicted) < 5.0
    full_snapshots = events(driver, "full_written")
    assert 5 <= len(full_snapshots) <= 30, "as often as needed and not more"
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["deltas"] < 40
    assert agrees(driver, ops)


class Slow(Accounts):
    """A millisecond of the driver's time for each record."""

    clock: Any = None

    def on_record(self, record: Record[Op]) -> None:
        type(self).clock.advance(0.001)
        super().on_record(record)


def test_what_handling_took_is_remembered_for_a_process_that_has_replayed_nothing_yet() -> None:
    driver = Driver(Slow, delta_interval="off")
    Slow.clock = driver.clock
    for op in many(300):
        driver.feed(op)
    driver.commit()
    assert 900_000 <= driver.commit_record().pace <= 1_100_000
    assert 0.3 <= predicted_now(driver) <= 0.5, "6 µs a record would be 0.002 s on top of the fixed 0.1"
    driver.crash()
    driver.speeds.now = Speed()  # another process
    driver.restore()
    assert driver.speeds.now.expected is not None
    assert driver.speeds.now.predict(Workload(gap=1000)).replay > 0.9
    ordinary = Driver(Slow)
    Slow.clock = ordinary.clock
    ordinary.feed(Op("ann", 1))
    ordinary.commit()
    assert ordinary.commit_record().pace == 0, "nothing is ever replayed"


def test_without_a_budget_no_full_snapshot_is_taken() -> None:
    driver = budgeted(restore_budget="off")
    assert max(feed_singly(driver, many(200))) > 20.0
    assert not events(driver, "full_written")


def test_a_warning_asks_for_a_compaction_where_only_compactions_take_full_snapshots() -> None:
    driver = budgeted(periodic_full=False)
    assert max(feed_singly(driver, many(200))) > 20.0
    assert not events(driver, "full_written")
    (warning,) = events(driver, "compaction_wanted")
    assert 4.0 <= warning["restore_seconds"] < 5.0, "before it is exceeded, and once"
    assert "statehold compact" in warning["cause"]


def test_the_full_snapshot_of_a_compaction_ends_the_warning() -> None:
    driver, ops = budgeted(periodic_full=False), many(200)
    feed_singly(driver, ops[:26])
    assert events(driver, "compaction_wanted")
    publish_full(driver)
    driver.advance(15.0)
    after = feed_singly(driver, ops[26:31])
    assert [event["first"] for event in events(driver, "full_noticed")] == [26]
    assert after[-1] < 2.5, "what the compaction folded is not to be read any more"
    assert not events(driver, "full_written")
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["deltas"] < 10
    assert agrees(driver, ops[:31])


def test_a_state_too_large_for_the_budget_is_logged_and_not_written_repeatedly() -> None:
    driver = budgeted()
    feed_singly(driver, many(1))  # its restore taught the driver that nothing takes any time
    driver.speeds.now = replace_speed(fixed=6.0)
    feed_singly(driver, many(20)[1:])
    assert not events(driver, "full_written")
    (warning,) = events(driver, "restore_over_budget")
    assert warning["restore_seconds"] > warning["budget"] == 5.0


def test_the_prediction_after_a_takeover_is_that_of_the_owner_before() -> None:
    driver = budgeted(restore_budget="off")
    before = feed_singly(driver, many(50))[-1]
    driver.crash()
    driver.restore()
    driver.feed(many(1)[0])
    driver.commit()
    after = predicted_now(driver)
    assert before < after < before * 1.2


def replace_speed(**changes: float) -> Speed:
    return Speed(**({"fixed": 0.0, "full": 1.0, "increments": 10_000.0, "digest": 1.0} | changes))


def predicted_now(driver: Driver) -> float:
    predicted = inside.lane(driver).worker.status().restore_predicted
    assert predicted is not None
    return predicted


def publish_full(driver: Driver) -> None:
    """What a compaction leaves behind: a full of the newest mark, which no mark refers to."""
    worker = inside.lane(driver).worker
    assert worker.engine is not None
    sink = MemoryFullSink(driver.broker, driver.names.snapshot, 0)
    writer = FullWriter(inside.place(driver), worker.engine.state, driver.commit_record(), 0, -1, sink, 4096)
    writer.manifest = msgspec.structs.replace(writer.manifest, maker=COMPACTION)
    assert writer.advance(driver.commit_record().n, -1.0, driver.clock) is not None
