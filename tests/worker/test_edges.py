"""Effects that exit, and effects that do not succeed for a long time."""

from __future__ import annotations

import time
from dataclasses import replace

from tests.support import inside
from tests.support.handlers import Accounts

from statehold import Handler, Record, Table
from statehold.api.handler import EffectKey
from statehold.balancer.assignment import Track
from statehold.config.sections.effects_timers_sinks import EffectsSettings
from statehold.config.sections.processing import CommitSettings
from statehold.ports import WorkerReport
from statehold.snapshot.format.records import Effect
from statehold.testing import Driver
from statehold.worker.common.context import EffectSetting
from statehold.worker.participants.effect_runner import EffectRunner
from statehold.worker.partition import PartitionWorker

tries: list[EffectKey] = []


def exits_once(key: EffectKey) -> None:
    """Exit, as some libraries do after a fatal error."""
    tries.append(key)
    if tries.count(key) == 1:
        raise SystemExit(1)


def test_an_effect_that_exits_is_a_failed_attempt() -> None:
    reported: list[BaseException] = []
    runner = EffectRunner(
        Driver(Accounts).handler(), EffectSetting("effects", lambda effect, error, attempt: reported.append(error))
    )
    effect = Effect(f"{__name__}:exits_once", "input", 0, 7, 0, b"\x90")
    runner.submit([effect])
    until = time.monotonic() + 60
    while runner.unfinished():
        assert time.monotonic() < until, f"still pending: {reported}"
        time.sleep(0.01)
    assert runner.close(1.0) == ()
    assert [type(error) for error in reported] == [SystemExit]


done: list[int] = []
away = True


def elsewhere(key: EffectKey, value: int) -> None:
    """The external service was unreachable for a while."""
    if away:
        raise ConnectionError("away")
    done.append(value)


class Calling(Handler[int]):
    """An effect for each record."""

    seen = Table(key=int, value=int)

    def on_record(self, record: Record[int]) -> None:
        self.seen[record.offset] = record.value
        self.effect(elsewhere, record.value)


def test_a_full_list_of_pending_effects_stops_further_records() -> None:
    """Each commit record lists the pending effects; without a limit it would exceed the message size."""
    global away  # noqa: PLW0603
    driver = Driver(Calling)
    driver.settings = replace(driver.settings, commit=CommitSettings(max_records=1), effects=EffectsSettings(pending=5))
    driver.position()
    driver.crash()
    reports: list[WorkerReport] = []
    worker = PartitionWorker(replace(inside.tools(driver), report=reports.append, effects=EffectRunner))
    worker.start(driver.clock())
    until = time.monotonic() + 60
    try:
        while not reports:
            assert time.monotonic() < until, worker.status()
            time.sleep(0.001)
        track = Track(worker)
        track.go_live(reports[0])
        log = driver.broker.log(driver.names.input, 0)
        for value in range(50):
            log.append(inside.encode(driver, log.topic, value))
        track.hand_over(list(log.committed(0)))
        while (worker.status().transaction or 0) < 5:
            assert time.monotonic() < until, worker.status()
            time.sleep(0.001)
        time.sleep(0.2)
        assert worker.status().position == 5
        away = False
        while len(done) < 50:
            assert time.monotonic() < until, worker.status()
            time.sleep(0.001)
        assert done == list(range(50))
    finally:
        worker.lose()
        assert worker.closed.wait(60)
