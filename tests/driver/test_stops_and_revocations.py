"""Clean stops, revocations and losses in the middle of things, and partitions that idle for long."""

from __future__ import annotations

from itertools import chain, repeat
from typing import ClassVar

import msgspec
import pytest
from tests.support import inside
from tests.support.handlers import (
    Accounts,
    Caller,
    Interval,
    Op,
    agrees,
    call,
    commit_records,
    events,
    many,
    sliced,
    snapshot,
)

from statehold import Record
from statehold.errors import KafkaTrouble, TransactionAborted
from statehold.testing import Driver
from statehold.testing.stepped import InlineEffects, SteppedWorker
from statehold.worker.common.lifecycle import Phase
from statehold.worker.full_snapshots.scheduler import FullSnapshots
from statehold.worker.loop import LiveLoop

ANN, BOB = Op("ann", 1), Op("bob", 2)


def close(worker: SteppedWorker) -> None:
    while worker.phase is not Phase.CLOSED:
        worker.step()


@pytest.mark.parametrize("interval", ["commit", 3600.0, "off"])
def test_after_a_clean_stop_nothing_is_replayed(interval: Interval) -> None:
    driver = Driver(Accounts, delta_interval=interval)
    ops = many(10)
    for op in ops:
        driver.feed(op)
    driver.stop()
    driver.restore()
    assert events(driver, "replayed")[-1]["records"] == 0
    assert events(driver, "restored")[-1]["full"] is not None
    assert agrees(driver, ops)


def test_a_stop_of_an_unchanged_partition_writes_no_second_full_snapshot() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    for _ in range(3):
        driver.stop()
        driver.restore()
    assert len(events(driver, "full_written")) == 1
    assert agrees(driver, [ANN])


def test_without_on_stop_a_stop_takes_no_full_snapshot() -> None:
    driver = Driver(Accounts)
    snapshot(driver, on_stop=False)
    driver.feed(ANN)
    driver.stop()
    assert events(driver, "full_written") == []


def test_a_full_snapshot_that_cannot_be_written_does_not_hinder_a_stop() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.commit()
    driver.broker.fail("full", KafkaTrouble("no"))
    driver.stop()
    assert len(events(driver, "full_abandoned")) == 1
    driver.restore()
    assert agrees(driver, [ANN])


def test_a_revoked_partition_commits_what_it_has_handled_and_takes_no_full_snapshot() -> None:
    driver = Driver(Accounts, autocommit=False)
    driver.feed(ANN)
    worker = inside.lanes(driver)[0].worker
    worker.revoke(driver.clock() + 5.0, final=False)
    close(worker)
    assert (driver.outputs("totals"), events(driver, "full_written")) == ([1], [])
    driver.restore()
    assert agrees(driver, [ANN])


def test_a_revoked_partition_whose_commit_is_rejected_tries_again_within_its_time() -> None:
    driver = Driver(Accounts, autocommit=False)
    driver.feed(ANN)
    driver.rebalance()
    driver.broker.fail("offsets", TransactionAborted("no"))
    worker = inside.lanes(driver)[0].worker
    worker.revoke(driver.clock() + 5.0, final=False)
    close(worker)
    assert driver.outputs("totals") == [1]


def test_a_lost_partition_commits_nothing() -> None:
    driver = Driver(Accounts, autocommit=False)
    driver.feed(ANN)
    worker = inside.lanes(driver)[0].worker
    worker.lose()
    close(worker)
    assert (driver.outputs("totals"), len(commit_records(driver))) == ([], 1)
    driver.restore()
    driver.commit()
    assert agrees(driver, [ANN])


def test_a_loss_overtakes_a_drain() -> None:
    driver = Driver(Accounts, autocommit=False)
    driver.feed(ANN)
    worker = inside.lanes(driver)[0].worker
    worker.revoke(driver.clock() + 5.0, final=True)
    worker.lose()
    close(worker)
    assert (driver.outputs("totals"), len(commit_records(driver))) == ([], 1)


def test_a_partition_that_fails_can_be_retried_in_place() -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.commit()
    driver.feed(BOB)
    driver.broker.fail("offsets", TransactionAborted("no"), times=50)
    with pytest.raises(Exception, match="transactions in a row were aborted"):
        driver.commit()
    inside.forget_faults(driver.broker)
    lane = inside.lanes(driver)[0]
    assert lane.worker.phase is Phase.FAILED
    lane.worker.retry()
    lane.worker.step()
    lane.run()
    assert agrees(driver, [ANN, BOB])


def test_an_idle_partition_makes_no_transaction_but_the_renewal() -> None:
    driver = Driver(Accounts)
    snapshot(driver, periodic_full=False)
    driver.feed(ANN)
    driver.commit()
    before = driver.commit_record()
    driver.advance(driver.settings.commit.renew_after - 100)
    assert driver.commit_record() == before
    driver.advance(2000)
    renewed = driver.commit_record()
    assert (renewed.n, renewed.positions, renewed.digest) == (before.n + 1, before.positions, before.digest)
    assert driver.broker.offsets["input", 0] == 1


def test_effects_that_are_done_leave_the_commit_record_of_an_idle_partition() -> None:
    driver = Driver(Caller)
    driver.feed(1)
    driver.commit()
    assert len(driver.commit_record().effects) == 1
    driver.advance(1.0)
    assert driver.commit_record().effects == ()


def test_a_full_snapshot_does_not_hold_up_what_is_fed_meanwhile() -> None:
    driver = Driver(Accounts)
    sliced(driver)
    ops = many(40)
    for op in ops:
        driver.feed(op)
    driver.commit()
    inside.lanes(driver)[0].live().full_snapshots.ask()
    longest = 0.0
    while not events(driver, "full_written"):
        ops.append(ANN)
        driver.feed(ANN)
        before = driver.clock()
        inside.lanes(driver)[0].commit()
        longest = max(longest, driver.clock() - before)
        driver.advance(0.05)
    assert longest < 2 * 0.006 + 1e-9  # one chunk at the boundary, one between two batches
    assert agrees(driver, ops)


class Ending(Accounts):
    ended: ClassVar[list[str]] = []

    def on_record(self, record: Record[Op]) -> None:
        super().on_record(record)
        self.effect(call, record.value.amount)

    def on_stop(self) -> None:
        self.ended.append("on_stop")


def test_everything_is_released_even_when_a_close_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(full_snapshots: FullSnapshots) -> None:
        raise OSError("cannot")

    monkeypatch.setattr(FullSnapshots, "close", cannot)
    monkeypatch.setattr(InlineEffects, "close", lambda effects, timeout: Ending.ended.append("effects"))
    driver = Driver(Ending)
    snapshot(driver, on_stop=False)
    driver.feed(ANN)
    driver.commit()
    Ending.ended.clear()
    inside.lanes(driver)[0].worker.lose()
    close(inside.lanes(driver)[0].worker)
    assert Ending.ended == ["effects", "on_stop"]
    assert events(driver, "failed")[-1]["error"] == "OSError"


def test_a_status_that_is_asked_for_while_a_pause_ends_is_of_one_commit_record(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(Accounts)
    driver.feed(ANN)
    driver.command("pause", via_control_topic=True)
    driver.advance(2.0)
    worker = inside.lanes(driver)[0].worker
    assert worker.live is not None
    paused = worker.live.record
    resumed = msgspec.structs.replace(paused, n=paused.n + 1, paused=None)
    records = chain([paused], repeat(resumed))  # it resumes after the first look
    monkeypatch.setattr(LiveLoop, "record", property(lambda live: next(records)))
    status = worker.status()
    assert (status.paused, status.transaction) == ("driver", paused.n)
