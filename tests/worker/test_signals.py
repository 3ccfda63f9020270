"""No signal is lost, none makes a thread spin, and none that comes early kills it (rule A6)."""

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import replace

import pytest
from tests.support import inside
from tests.support.handlers import Accounts, Op

from statehold import Service
from statehold.errors import Fenced
from statehold.ports import Offsets, WorkerReport
from statehold.testing import Driver
from statehold.worker.common.lifecycle import Event, Phase
from statehold.worker.common.signals import Signals
from statehold.worker.partition import PartitionWorker


class _Late(threading.Event):
    """Something else happens right before it is cleared, as another thread may have it."""

    def __init__(self, then: object) -> None:
        super().__init__()
        self._then = then

    def clear(self) -> None:
        if callable(self._then):
            self._then()
        super().clear()


class Leaves(Accounts):
    """Ends its thread in on_stop."""

    def on_stop(self) -> None:
        raise SystemExit


def worker(handler: type[Accounts] = Accounts) -> tuple[PartitionWorker, Driver]:
    """A worker with a thread of its own on a cluster in memory, and its driver."""
    driver = Driver(handler)
    driver.feed(Op("ann", 1))
    driver.crash()
    return PartitionWorker(inside.tools(driver)), driver


def wait_for(partition: PartitionWorker, phase: str) -> None:
    until = time.monotonic() + 60
    while partition.status().phase != phase:
        assert time.monotonic() < until, f"still {partition.status()}"
        time.sleep(0.001)


class _Interrupted:
    """A manager that receives another stop signal while it is being stopped, as a second SIGTERM does."""

    def __init__(self, service: Service) -> None:
        self._service, self.stops, self._first = service, 0, True

    def stop(self, _within: float) -> None:
        self.stops += 1
        first, self._first = self._first, False
        if first:
            signal.raise_signal(signal.SIGTERM)
        self._service._ended.set()


def test_a_second_stop_signal_does_not_interrupt_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service("ledger", input="orders", handler=Accounts)
    manager = _Interrupted(service)

    def start(self: Service) -> None:
        self._manager = manager  # type: ignore[assignment]
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Service, "start", start)
    service.run()
    # the manager's events have locks that are not reentrant: a nested `stop` would deadlock the main thread
    assert manager.stops == 2, "once for the first signal, once after `start`"


def test_a_revocation_during_a_retry_still_ends_every_wait() -> None:
    signals = Signals()
    signals.any = _Late(lambda: signals.revoke(1.0, final=False))
    signals.retry()
    assert signals.event() is Event.RETRY
    assert signals.any.is_set()
    assert signals.event() is Event.REVOKED


def test_a_loss_during_a_failure_still_ends_every_wait() -> None:
    signals = Signals()
    signals.any = _Late(signals.lose)
    signals.fail(ValueError("gone"))
    with pytest.raises(ValueError, match="gone"):
        signals.raise_failure()
    assert signals.any.is_set()


def test_a_failure_that_the_consumer_reports_twice_leaves_a_failed_partition_asleep() -> None:
    partition, driver = worker()
    driver.broker.log(driver.names.input, 0).start = 10**6
    partition.start(driver.clock())
    try:
        wait_for(partition, "failed")
        partition.fail(ValueError("out of range"))
        assert isinstance(partition._thread, threading.Thread)
        clock = time.pthread_getcpuclockid(partition._thread.ident or 0)
        before = time.clock_gettime(clock)
        time.sleep(0.3)
        assert time.clock_gettime(clock) - before < 0.03, "it spins"
    finally:
        partition.lose()
        assert partition.closed.wait(60)


class _Stumbling:
    """Answers of the group, after a few questions that raise what no one expects."""

    def __init__(self, offsets: Offsets, errors: int) -> None:
        self._offsets, self.errors = offsets, errors

    def __getattr__(self, name: str) -> object:
        return getattr(self._offsets, name)

    def is_member(self, member_id: str, topic: str, partition: int) -> bool:
        if self.errors > 0:
            self.errors -= 1
            raise RuntimeError("can't start new thread")
        return self._offsets.is_member(member_id, topic, partition)


def test_an_unexpected_error_while_a_failed_partition_waits_does_not_end_the_service() -> None:
    driver = Driver(Accounts)
    driver.feed(Op("ann", 1))
    driver.crash()
    reports: list[WorkerReport] = []
    tools = inside.tools(driver)
    offsets = _Stumbling(tools.offsets, 2)
    partition = PartitionWorker(replace(tools, report=reports.append, offsets=offsets))  # type: ignore[arg-type]
    partition.start(driver.clock())
    try:
        wait_for(partition, "live")
        partition.fail(Fenced("commit", topic=driver.names.input, partition=0))
        wait_for(partition, "failed")
        wait_for(partition, "live")
        assert offsets.errors == 0
        assert "died" not in [report.kind for report in reports]
    finally:
        partition.lose()
        assert partition.closed.wait(60)


def test_what_the_consumer_saw_before_a_failure_does_not_fail_the_retry() -> None:
    partition, driver = worker()
    log = driver.broker.log(driver.names.input, 0)
    start, log.start = log.start, 10**6
    partition.start(driver.clock())
    try:
        wait_for(partition, "failed")
        partition.fail(ValueError("out of range"))
        log.start = start
        time.sleep(0.05)
        partition.retry()
        wait_for(partition, "live")
        time.sleep(0.05)
        assert partition.status().phase == "live"
    finally:
        partition.lose()
        assert partition.closed.wait(60)


def test_a_retry_that_comes_before_the_thread_has_begun_kills_nothing() -> None:
    partition, driver = worker()
    partition.retry()
    partition.start(driver.clock())
    try:
        wait_for(partition, "live")
    finally:
        partition.lose()
        assert partition.closed.wait(60)


def test_a_partition_closes_although_on_stop_raises_system_exit() -> None:
    partition, driver = worker(Leaves)
    partition.start(driver.clock())
    wait_for(partition, "live")
    partition.revoke(driver.clock() + 60, final=True)
    assert partition.closed.wait(60)
    assert "partition_closed" in [event for event, _ in driver.events]


def test_a_thread_that_ends_by_an_error_that_no_phase_catches_reports_it() -> None:
    _, driver = worker()
    reports: list[WorkerReport] = []
    partition = PartitionWorker(replace(inside.tools(driver), report=reports.append))
    partition._phases[Phase.FENCING] = lambda: sys.exit("out of stack")
    partition.start(driver.clock())
    assert partition.closed.wait(60)
    assert [report.kind for report in reports] == ["died", "closed"]
    assert "out of stack" in str(reports[0].cause)
