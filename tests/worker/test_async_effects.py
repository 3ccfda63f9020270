"""Effects that are `async def`: on the process's event loop, in order, until each succeeds or its partition closes."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest
from tests.support import inside

from statehold import Handler, Record, Table
from statehold.api.handler import EffectKey
from statehold.balancer.assignment import Track
from statehold.config.sections.processing import CommitSettings
from statehold.ports import WorkerReport
from statehold.snapshot.format.records import Effect
from statehold.testing import Driver
from statehold.worker.calls.event_loop import CallLoop
from statehold.worker.common.context import EffectSetting
from statehold.worker.handler.effect_calls import note
from statehold.worker.participants.effect_runner import EffectRunner
from statehold.worker.partition import PartitionWorker

PATIENCE = 20


class Waiting(Handler[int]):
    """Effects that wait for what a test sets, on the loop or on a thread."""

    def __init__(self) -> None:
        self.ran: list[tuple[int, str]] = []
        self.begun, self.cancelled, self.free = threading.Event(), threading.Event(), threading.Event()
        self.failures: list[BaseException] = []

    async def act(self, key: EffectKey) -> None:
        self.begun.set()
        while not self.free.is_set():
            await asyncio.sleep(0.001)
        if self.failures:
            raise self.failures.pop()
        self.ran.append((key[2], threading.current_thread().name))

    def act_plainly(self, key: EffectKey) -> None:
        self.ran.append((key[2], threading.current_thread().name))

    async def wait(self, key: EffectKey) -> None:
        self.begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def fail(self, key: EffectKey) -> None:
        """Raise another error than the cancellation."""
        try:
            await self.wait(key)
        finally:
            raise ConnectionError("closed")

    async def resist(self, key: EffectKey) -> None:
        """Continue after a cancellation."""
        self.begun.set()
        while not self.free.is_set():
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                self.cancelled.set()

    async def block(self, key: EffectKey) -> None:
        self.begun.set()
        self.free.wait(PATIENCE)


class World:
    """The effects of one partition, on a loop of the test's."""

    def __init__(self) -> None:
        self.handler, self.loop = Waiting(), CallLoop()
        self.reports: list[tuple[BaseException, int]] = []
        self.started, self.lost = threading.Event(), threading.Event()
        self.runner = EffectRunner(
            self.handler,
            EffectSetting(
                "effects-async",
                lambda effect, error, attempt: self.reports.append((error, attempt)),
                lost=self.lost.is_set,
            ),
            self._start,
        )

    def _start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        started = self.loop.start(coroutine)
        self.started.set()
        return started

    def submit(self, *names: str) -> None:
        self.runner.submit(
            [note(self.handler, getattr(self.handler, name), key(at), ()) for at, name in enumerate(names)]
        )


def key(offset: int) -> EffectKey:
    return "input", 0, offset, 0


def offsets(effects: tuple[Effect, ...]) -> list[int]:
    return [each.offset for each in effects]


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.handler.free.set()
    made.runner.close(0.0)


def test_async_and_plain_effects_run_in_one_order_each_where_it_belongs(world: World) -> None:
    world.submit("act", "act_plainly", "act")
    assert world.handler.begun.wait(PATIENCE)
    assert world.handler.ran == []
    world.handler.free.set()
    assert world.runner.close(PATIENCE) == ()
    assert world.handler.ran == [(0, "calls"), (1, "effects-async"), (2, "calls")]


def test_an_async_effect_that_raises_is_retried_and_exits_do_not_end_the_loop(world: World) -> None:
    world.handler.free.set()
    world.handler.failures = [asyncio.CancelledError(), SystemExit(1), ConnectionError("down")]
    world.submit("act")
    assert world.runner.close(PATIENCE) == ()
    assert [offset for offset, _ in world.handler.ran] == [0]
    assert [attempt for _, attempt in world.reports] == [1, 2, 3]
    assert [type(error).__name__ for error, _ in world.reports] == ["ConnectionError", "RuntimeError", "CancelledError"]


def test_a_close_cancels_an_async_effect_and_leaves_it_pending(world: World) -> None:
    world.submit("wait", "act")
    assert world.handler.begun.wait(PATIENCE)
    assert offsets(world.runner.close(0.0)) == [0, 1]
    assert world.handler.cancelled.wait(PATIENCE)
    assert offsets(world.runner.close(PATIENCE)) == [0, 1]  # after the end of its thread
    assert (world.handler.ran, world.reports) == ([], [])


def test_an_error_after_the_cancellation_is_no_news(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.submit("fail")
    assert world.handler.begun.wait(PATIENCE)
    assert offsets(world.runner.close(0.0)) == [0]
    assert world.handler.cancelled.wait(PATIENCE)
    world.loop.run(asyncio.sleep(0))
    gc.collect()
    assert (caplog.messages, world.reports) == ([], [])


def test_an_async_effect_that_catches_its_cancellation_keeps_no_thread(world: World) -> None:
    world.submit("resist")
    assert world.handler.begun.wait(PATIENCE)
    world.runner.close(0.0)
    assert world.handler.cancelled.wait(PATIENCE)
    assert offsets(world.runner.close(PATIENCE)) == [0]
    assert not any(each.name == "effects-async" for each in threading.enumerate())


@pytest.mark.parametrize("ends", ["closed", "lost"])
def test_an_async_effect_does_not_begin_once_its_partition_has_ended(world: World, ends: str) -> None:
    """The loop may be busy between the thread's check and the begin of the coroutine."""
    free = threading.Event()

    def hold() -> None:
        free.wait(PATIENCE)

    world.loop.soon(hold)
    world.handler.free.set()
    world.submit("act")
    assert world.started.wait(PATIENCE)
    if ends == "closed":
        world.runner.close(0.0)
    else:
        world.lost.set()
    free.set()
    assert offsets(world.runner.close(PATIENCE)) == [0]
    world.loop.run(asyncio.sleep(0))
    assert not world.handler.begun.is_set()


def test_an_async_effect_that_blocks_the_loop_is_named(world: World) -> None:
    world.submit("block")
    assert world.handler.begun.wait(PATIENCE)
    until = time.monotonic() + PATIENCE
    while not (stack := world.loop.blocked()):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert "in block" in stack


def test_plain_effects_start_no_event_loop() -> None:
    def refuse(coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        raise AssertionError

    handler = Waiting()
    runner = EffectRunner(handler, EffectSetting("effects-plain", lambda *_: None), refuse)
    runner.submit([note(handler, handler.act_plainly, key(0), ())])
    assert runner.close(PATIENCE) == ()


posted: list[tuple[EffectKey, int, str]] = []
#: set after the effect of the value 2
last = threading.Event()


async def post(key: EffectKey, value: int) -> None:
    await asyncio.sleep(0)
    posted.append((key, value, threading.current_thread().name))
    if value == 2:
        last.set()


class Posting(Handler[int]):
    seen = Table(key=int, value=int)

    def on_record(self, record: Record[int]) -> None:
        self.seen[record.offset] = record.value
        self.effect(post, record.value)


def test_async_effects_run_after_the_commit_of_their_records() -> None:
    posted.clear()
    last.clear()
    driver = Driver(Posting)
    driver.settings = replace(driver.settings, commit=CommitSettings(max_records=1))
    driver.position()
    driver.crash()
    reports = SimpleQueue[WorkerReport]()
    worker = PartitionWorker(replace(inside.tools(driver), report=reports.put, effects=EffectRunner))
    worker.start(driver.clock())
    try:
        track = Track(worker)
        track.go_live(reports.get(timeout=PATIENCE))
        log = driver.broker.log(driver.names.input, 0)
        for value in range(3):
            log.append(inside.encode(driver, log.topic, value))
        track.hand_over(list(log.committed(0)))
        assert last.wait(PATIENCE), worker.status()
        assert worker.status().position == 3
        assert posted == [(("input", 0, value, 0), value, "calls") for value in range(3)]
    finally:
        worker.lose()
        assert worker.closed.wait(PATIENCE)


def test_a_driver_runs_async_effects() -> None:
    posted.clear()
    driver = Driver(Posting, run_effects=True)
    driver.feed(7)
    driver.commit()
    assert [value for _, value, _ in posted] == [7]
    assert driver.pending_effects == []
