"""A partition that has gone, or has failed, holds no state, without help of the cyclic collector (which is frozen)."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, NamedTuple

import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Op

from statehold import Record, Reference, Sink, Timer, dead_letter
from statehold.balancer.assignment import Track
from statehold.errors import ProducerFenced
from statehold.ports import WorkerReport
from statehold.testing import Driver
from statehold.worker.participants.effect_runner import EffectRunner
from statehold.worker.partition import PartitionWorker


class Picky(Accounts):
    """Refuses one account."""

    def on_record(self, record: Record[Op]) -> None:
        super().on_record(record)
        if record.value.account == "bad":
            raise ValueError("bad")


class Row(NamedTuple):
    account: str


class Booked(Picky):
    """Has a connection, and retries."""

    rows = Sink("rows", value=Row, key="account")

    def on_record(self, record: Record[Op]) -> None:
        self.rows.put(Row(record.value.account))
        super().on_record(record)


class Priced(Picky):
    """Has rows that others have, too."""

    prices = Reference("prices", key=str, value=int)

    def on_record(self, record: Record[Op]) -> None:
        self.prices.get(record.value.account)
        super().on_record(record)


class Timed(Picky):
    """Goes by the partition's time, and dead-letters records."""

    on_failure: ClassVar = {KeyError: dead_letter()}

    def on_record(self, record: Record[Op]) -> None:
        self.schedule(record.timestamp + 1_000_000)
        super().on_record(record)

    def on_timer(self, timer: Timer) -> None:
        """Nothing."""


class Partition:
    """A worker with its thread, fed from a driver's input."""

    def __init__(self, handler: type[Picky]) -> None:
        self.driver = Driver(handler)
        self.driver.feed(Op("ann", 1))
        self.driver.commit()
        self.driver.crash()
        self.reports: list[WorkerReport] = []
        tools = replace(inside.tools(self.driver), report=self.reports.append, effects=EffectRunner)
        self.worker = PartitionWorker(tools)
        self.worker.start(self.driver.clock())
        self.reach("live")
        live = self.worker._takeover.live
        assert live is not None
        self.state = weakref.ref(live.engine.state)

    def reach(self, phase: str) -> None:
        until = time.monotonic() + 60
        while self.worker.status().phase != phase or not self.reports:
            assert time.monotonic() < until, self.worker.status()
            time.sleep(0.001)

    def feed(self, op: Op) -> None:
        said = next(report for report in self.reports if report.kind == "live")
        track = Track(self.worker)
        track.go_live(said)
        log = self.driver.broker.log(self.driver.names.input, 0)
        log.append(inside.encode(self.driver, log.topic, op))
        track.hand_over(list(log.committed(said.position)))

    def gone(self) -> bool:
        until = time.monotonic() + 60
        while self.state() is not None and time.monotonic() < until:
            time.sleep(0.01)
        return self.state() is None


@pytest.fixture(params=[Picky, Booked, Priced, Timed], ids=lambda handler: handler.__name__)
def partition(request: pytest.FixtureRequest) -> Iterator[Partition]:
    gc.disable()
    made = Partition(request.param)
    try:
        yield made
    finally:
        made.worker.lose()
        assert made.worker.closed.wait(60)
        gc.enable()


def test_a_lost_partition_frees_its_state(partition: Partition) -> None:
    partition.worker.lose()
    assert partition.worker.closed.wait(60)
    assert partition.gone()


def test_a_partition_that_was_drained_frees_its_state(partition: Partition) -> None:
    partition.worker.revoke(partition.driver.clock() + 10, final=False)
    assert partition.worker.closed.wait(60)
    assert partition.gone()


def test_a_partition_that_a_record_has_failed_frees_its_state(partition: Partition) -> None:
    partition.feed(Op("bad"))
    partition.driver.clock.advance(1)
    partition.reach("failed")
    assert partition.gone()
    assert "bad" in (partition.worker.status().cause or "")


def test_a_fenced_partition_frees_its_state(partition: Partition) -> None:
    partition.driver.offsets.owner = False
    partition.driver.broker.fail("send", ProducerFenced("epoch"))
    partition.feed(Op("bob"))
    partition.reach("failed")
    assert partition.gone()


def test_a_takeover_that_fails_frees_the_copy_that_it_began_with() -> None:
    gc.disable()
    try:
        driver = Driver(Accounts)
        driver.feed(Op("ann", 1))
        driver.stand_by()
        state = weakref.ref(driver.standbys.copies()[0].state)
        driver.crash()
        del driver.broker.logs["input", 0]  # its records are gone: refused, but only after the restore
        reports: list[WorkerReport] = []
        worker = PartitionWorker(replace(inside.tools(driver), report=reports.append))
        worker.start(driver.clock())
        until = time.monotonic() + 60
        while worker.status().phase != "failed" and time.monotonic() < until:
            time.sleep(0.01)
        while state() is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert worker.status().error == "RetentionGap"
        assert state() is None
        worker.lose()
        assert worker.closed.wait(60)
    finally:
        gc.enable()
