"""The thread that runs side effects: in order, until each succeeds, and never longer than it is waited for."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from statehold import Handler
from statehold.api.handler import EffectKey
from statehold.config.sections.effects_timers_sinks import EffectsSettings
from statehold.snapshot.format.records import Effect
from statehold.worker.common.context import EffectSetting
from statehold.worker.handler.effect_calls import call, find, note, weight
from statehold.worker.participants.effect_runner import EffectRunner


class Recorder(Handler[int]):
    """A handler whose effect blocks on demand and fails a given number of times."""

    def __init__(self) -> None:
        self.calls: list[tuple[EffectKey, int]] = []
        self.failures = 0
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()

    def act(self, key: EffectKey, value: int) -> None:
        self.begun.set()
        self.gate.wait(30)
        self.calls.append((key, value))
        if self.failures:
            self.failures -= 1
            raise ConnectionError("down")

    def refuse(self, key: EffectKey) -> None:
        raise ConnectionError("down")


def effect(handler: Recorder, offset: int) -> Effect:
    return note(handler, handler.act, ("input", 0, offset, 0), (offset,))


@contextmanager
def running() -> Iterator[tuple[Recorder, EffectRunner, list[int]]]:
    handler, attempts = Recorder(), list[int]()
    runner = EffectRunner(
        handler, EffectSetting("effects-test", lambda effect, error, attempt: attempts.append(attempt))
    )
    yield handler, runner, attempts
    handler.gate.set()
    assert runner.close(30) == ()


def test_effects_run_in_order_and_are_done() -> None:
    with running() as (handler, runner, _):
        runner.submit([effect(handler, 1), effect(handler, 2)])
        assert runner.close(30) == ()
        assert handler.calls == [(("input", 0, 1, 0), 1), (("input", 0, 2, 0), 2)]


def test_an_effect_that_raises_is_retried_with_the_same_key_before_the_next() -> None:
    with running() as (handler, runner, attempts):
        handler.failures = 2
        runner.submit([effect(handler, 1), effect(handler, 2)])
        runner.close(30)
        assert [key[2] for key, _ in handler.calls] == [1, 1, 1, 2]
        assert attempts == [1, 2]


def test_a_pending_effect_is_not_run_twice() -> None:
    with running() as (handler, runner, _):
        handler.gate.clear()
        runner.submit([effect(handler, 1)])
        runner.submit([effect(handler, 1), effect(handler, 2)])
        assert [effect.offset for effect in runner.unfinished()] == [1, 2]
        handler.gate.set()
        runner.close(30)
        assert len(handler.calls) == 2


def test_a_close_waits_no_longer_than_its_timeout_and_leaves_the_rest_pending() -> None:
    handler = Recorder()
    runner = EffectRunner(handler, EffectSetting("effects-test", lambda effect, error, attempt: None))
    handler.gate.clear()
    runner.submit([effect(handler, 1), effect(handler, 2)])
    assert handler.begun.wait(30)
    assert [effect.offset for effect in runner.close(0.0)] == [1, 2]
    handler.gate.set()
    assert [effect.offset for effect in runner.close(30)] == [2]
    assert len(handler.calls) == 1


def test_without_effects_there_is_no_thread() -> None:
    before = threading.active_count()
    with running() as (_, runner, _):
        runner.submit([])
        assert threading.active_count() == before


def test_a_worker_that_lost_its_partition_sends_nothing_more() -> None:
    handler, lost = Recorder(), threading.Event()
    runner = EffectRunner(handler, EffectSetting("effects-test", lambda *_: None, lost=lost.is_set))
    handler.gate.clear()
    runner.submit([effect(handler, 1), effect(handler, 2)])
    assert handler.begun.wait(30)
    lost.set()  # the partition's own thread may be busy and not have heard yet
    handler.gate.set()
    assert [effect.offset for effect in runner.close(30)] == [2]
    assert [key[2] for key, _ in handler.calls] == [1]


def test_with_threads_one_key_that_fails_holds_up_only_its_own() -> None:
    handler, reported = Recorder(), threading.Event()
    settings = EffectsSettings(threads=2, max_backoff=0.1)
    down = note(handler, handler.refuse, ("input", 0, 1, 0), (), b"a")
    behind = note(handler, handler.act, ("input", 0, 2, 0), (2,), b"a")
    next_to = note(handler, handler.act, ("input", 0, 3, 0), (3,), b"d")
    assert down.lane % 2 == behind.lane % 2 != next_to.lane % 2
    runner = EffectRunner(handler, EffectSetting("effects-test", lambda *_: reported.set(), settings))
    runner.submit([down, behind, next_to])
    assert reported.wait(30)
    assert handler.begun.wait(30)
    assert [effect.offset for effect in runner.close(0.2)] == [1, 2]
    assert [value for _, value in handler.calls] == [3]


def test_pending_effects_are_counted_weighed_and_dated() -> None:
    with running() as (handler, runner, _):
        handler.gate.clear()
        first = note(handler, handler.act, ("input", 0, 1, 0), (1,), b"k", 5000)
        runner.submit([first, note(handler, handler.act, ("input", 0, 2, 0), (2,), b"k", 6000)])
        pending = runner.pending()
        assert (pending.number, pending.oldest) == (2, 5000)
        assert pending.weight == 2 * weight([first]) > 0
        handler.gate.set()
        runner.close(30)
        assert runner.pending() == (0, 0, 0)


def test_a_name_from_kafka_imports_no_module_of_a_strangers_choice() -> None:
    handler, strange = Recorder(), "antigravity"
    assert strange not in sys.modules
    with pytest.raises(LookupError, match="antigravity"):
        call(handler, Effect(f"{strange}:fly", "input", 0, 7, 0, b"\x90"))
    assert strange not in sys.modules
    with pytest.raises(AttributeError, match="__class__"):
        find(handler, ".act.__class__")
    assert find(handler, f"{__name__}:effect") is effect
