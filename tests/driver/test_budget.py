"""A partition keeps its restore time within `snapshot.restore_budget`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.driver.apps import Accounts, Op, agrees, events, many

from holdfast.config.settings import Settings
from holdfast.snapshot.budget import Speed
from holdfast.testing import Driver

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


def test_a_full_is_taken_before_the_budget_is_exceeded() -> None:
    driver, ops = budgeted(), many(200)
    predicted = feed_singly(driver, ops)
    assert max(predicted) < 5.0
    fulls = events(driver, "full_written")
    assert 5 <= len(fulls) <= 30, "as often as needed and not more"
    driver.crash()
    driver.restore()
    assert events(driver, "restored")[-1]["deltas"] < 40
    assert agrees(driver, ops)


def test_without_a_budget_the_same_goes_on_without_a_full() -> None:
    driver = budgeted(restore_budget="off")
    assert max(feed_singly(driver, many(200))) > 20.0
    assert not events(driver, "full_written")


def test_where_fulls_are_left_to_a_compaction_it_is_asked_for() -> None:
    driver = budgeted(periodic_full=False)
    assert max(feed_singly(driver, many(200))) > 20.0
    assert not events(driver, "full_written")
    (warning,) = events(driver, "compaction_wanted")
    assert 4.0 <= warning["restore_seconds"] < 5.0, "before it is exceeded, and once"
    assert "holdfast compact" in warning["cause"]


def test_a_state_that_is_too_large_for_the_budget_is_told_and_not_written_again_and_again() -> None:
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
    predicted: float = driver._lane(0).worker.status()["restore_predicted"]
    return predicted
