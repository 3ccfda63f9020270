"""Makes calls on a real event loop and real threads: in order, within limits and time, whatever a function does."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import msgspec
import pytest

from statehold import Call
from statehold.config.sections.effects_timers_sinks import CallsSettings
from statehold.errors import CallDelayed, CallRejected
from statehold.messages.call_outcome import CallJob, CallOutcome
from statehold.state.kinds.calls import CallTable
from statehold.worker.calls.event_loop import BLOCKED, CallLoop
from statehold.worker.calls.runner import CallRunner
from statehold.worker.common.context import CallFunction, CallSetting

#: seconds that a test waits for what must happen
PATIENCE = 30.0


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def loop_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of each, if uvloop is installed."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    else:
        monkeypatch.setitem(sys.modules, "uvloop", None)


class World:
    """One partition whose only `Call` is named c; its function is the test's."""

    def __init__(self, loop: CallLoop, function: Callable[[str, str], Any], **options: Any) -> None:
        types = {"argument": str, "result": str, "backoff": 0.001}
        declared: Call[Any, Any] = Call(function, **{**types, **options})
        table = CallTable(declared)
        self.loop = loop
        self.ended = threading.Condition()
        #: attempts that raised: id, error, attempt, whether it was the last
        self.reports: list[tuple[str, BaseException, int, bool]] = []
        #: what was reported of outages
        self.outages: list[str] = []
        self.is_lost = False
        about = CallSetting(
            {"c": CallFunction(table.options, table.argument, table.result)},
            lambda job, error, attempt, last: self.reports.append((job.id, error, attempt, last)),
            self._wake,
            CallsSettings(in_flight=4, threads=2),
            lambda call, error: self.outages.append(error),
            lambda: self.is_lost,
            largest=1000,
        )
        self.runner = CallRunner(about, loop)
        self._found: list[CallOutcome] = []

    def _wake(self) -> None:
        with self.ended:
            self.ended.notify()

    def submit(self, *names: str, key: bytes | None = None) -> None:
        self.runner.submit([CallJob(name, "c", msgspec.msgpack.encode(name), key, 0) for name in names])

    def outcomes(self, number: int) -> list[CallOutcome]:
        """Wait until this number of calls has ended, and return them in the order of their ends."""
        with self.ended:
            assert self.ended.wait_for(lambda: len(self._take()) >= number, PATIENCE)
        return self._found

    def _take(self) -> list[CallOutcome]:
        self._found += self.runner.finished()
        return self._found

    def only(self) -> CallOutcome:
        (outcome,) = self.outcomes(1)
        return outcome

    def settle(self) -> None:
        """Wait until the loop has done what was asked of it."""
        done = threading.Event()
        self.loop.soon(done.set)
        assert done.wait(PATIENCE)


@contextmanager
def world(function: Callable[[str, str], Any], loop: CallLoop | None = None, **options: Any) -> Iterator[World]:
    made = World(loop or CallLoop(), function, **options)
    try:
        yield made
    finally:
        made.runner.close(0)


def result(outcome: CallOutcome) -> object:
    return None if outcome.result is None else msgspec.msgpack.decode(outcome.result)


async def upper(name: str, text: str) -> str:
    return text.upper()


def upper_plain(name: str, text: str) -> str:
    return text.upper()


def test_the_loop_is_uvloops_if_it_is_installed(request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["loop_of"]
    assert type(CallLoop().loop).__module__.split(".")[0] == kind


@pytest.mark.parametrize("function", [upper, upper_plain])
def test_an_answer_comes_back_encoded(function: Callable[[str, str], Any]) -> None:
    with world(function) as here:
        here.submit("a", "b", "c", "d", "e", "f")
        found = here.outcomes(6)
        assert sorted((each.id, result(each)) for each in found) == [(name, name.upper()) for name in "abcdef"]
        assert {each.attempts for each in found} == {1}


class Gated:
    """Functions that wait until a test lets them go."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.most = 0
        self.begun: list[str] = []
        self.changed = threading.Condition()
        self.free: set[str] = set()

    async def wait(self, name: str, text: str) -> str:
        self._enter(name)
        try:
            while name not in self.free and "*" not in self.free:
                await asyncio.sleep(0.001)
        finally:
            self._leave(name)
        return text

    def wait_plain(self, name: str, text: str) -> str:
        self._enter(name)
        with self.changed:
            assert self.changed.wait_for(lambda: name in self.free or "*" in self.free, PATIENCE)
        self._leave(name)
        return text

    def _enter(self, name: str) -> None:
        with self.changed:
            self.running.append(name)
            self.begun.append(name)
            self.most = max(self.most, len(self.running))
            self.changed.notify_all()

    def _leave(self, name: str) -> None:
        with self.changed:
            self.running.remove(name)
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE)

    def let_go(self, *names: str) -> None:
        with self.changed:
            self.free |= set(names)
            self.changed.notify_all()


def test_the_process_makes_no_more_attempts_at_a_time_than_its_limit_and_all_get_their_turn() -> None:
    gated, loop = Gated(), CallLoop()
    with world(gated.wait, loop) as one, world(gated.wait, loop) as two:
        one.submit(*(f"one{number}" for number in range(20)))
        two.submit(*(f"two{number}" for number in range(20)))
        gated.until(lambda: len(gated.running) == 4)
        gated.let_go("*")
        assert len(one.outcomes(20)) == len(two.outcomes(20)) == 20
        assert gated.most == 4
        assert sum(name.startswith("two") for name in gated.begun[:16]) >= 5, "partitions take turns"


def test_plain_functions_run_on_their_own_number_of_threads() -> None:
    gated = Gated()
    with world(gated.wait_plain) as here:
        here.submit(*(f"{number}" for number in range(10)))
        gated.until(lambda: len(gated.running) == 2)
        gated.let_go("*")
        assert len(here.outcomes(10)) == 10
        assert gated.most == 2


@pytest.mark.parametrize("name", ["wait", "wait_plain"])
def test_calls_of_a_key_run_in_their_order_and_others_do_not_wait(name: str) -> None:
    gated = Gated()
    with world(getattr(gated, name), per_key_order=True) as here:
        here.submit("a1", "a2", key=b"a")
        here.submit("b1", key=b"b")
        gated.until(lambda: sorted(gated.running) == ["a1", "b1"])
        gated.let_go("b1")
        assert here.only().id == "b1"
        assert gated.running == ["a1"]
        gated.let_go("a1", "a2")
        assert [each.id for each in here.outcomes(3)] == ["b1", "a1", "a2"]


def test_a_failed_call_of_a_key_is_tried_again_before_the_next_one() -> None:
    begun: list[str] = []

    async def fail_twice(name: str, text: str) -> str:
        begun.append(name)
        if begun.count("a1") < 3:
            raise ConnectionError("down")
        return text

    with world(fail_twice, per_key_order=True) as here:
        here.submit("a1", "a2", key=b"a")
        assert [each.id for each in here.outcomes(2)] == ["a1", "a2"]
        assert begun == ["a1", "a1", "a1", "a2"]
        assert [(attempt, last) for _, _, attempt, last in here.reports] == [(1, False), (2, False)]


def test_attempts_are_used_up() -> None:
    async def fail(name: str, text: str) -> str:
        raise ValueError("no " + "x" * 10_000)

    with world(fail, attempts=3) as here:
        here.submit("a")
        outcome = here.only()
        assert (outcome.result, outcome.attempts) == (None, 3)
        assert outcome.error.startswith("ValueError: no xxx")
        assert len(outcome.error) == 500
        assert [last for *_, last in here.reports] == [False, False, True]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class UnspeakableTimeout(Unspeakable, TimeoutError):
    pass


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Unspeakable(), "Unspeakable: its text raises RuntimeError"),
        (UnspeakableTimeout(), "UnspeakableTimeout: its text raises RuntimeError"),
        (ValueError("\udc80"), "ValueError: ?"),
        (SystemExit(3), "3"),
        (KeyboardInterrupt(), ""),
        (asyncio.CancelledError("own"), "CancelledError: own"),
        (StopIteration(), "StopIteration"),
        (CallRejected("unknown card"), "CallRejected: unknown card"),
        (TimeoutError(), "TimeoutError: no answer within 30 s"),
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_a_function_may_raise_anything(error: BaseException, text: str, plain: bool) -> None:
    async def fail(name: str, _: str) -> str:
        raise error

    def fail_plain(name: str, _: str) -> str:
        raise error

    with world(fail_plain if plain else fail, attempts=1) as here:
        here.submit("a")
        outcome = here.only()
        assert outcome.result is None
        assert text in outcome.error


def test_a_rejected_call_has_one_attempt() -> None:
    async def reject(name: str, text: str) -> str:
        raise CallRejected("no")

    with world(reject) as here:
        here.submit("a")
        assert here.only().attempts == 1


def test_a_delayed_call_waits_at_least_as_long_as_the_other_system_says() -> None:
    times: list[float] = []

    async def delay(name: str, text: str) -> str:
        times.append(time.monotonic())
        if len(times) == 1:
            raise CallDelayed(0.2)
        return text

    with world(delay) as here:
        here.submit("a")
        assert here.only().attempts == 2
        assert times[1] - times[0] >= 0.2


class Unshown:
    def __repr__(self) -> str:
        raise OSError("gone")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "returned 5, which is no"),
        (None, "which is no"),
        ("x" * 1001, "returned 1004 bytes"),
        (Unshown(), "returned a value without a repr, of type Unshown, which is no"),
    ],
)
def test_what_is_no_answer_is_rejected(value: object, text: str) -> None:
    with world(lambda name, _: value) as here:
        here.submit("a")
        outcome = here.only()
        assert (outcome.result, outcome.attempts) == (None, 1)
        assert text in outcome.error


def test_a_plain_function_that_returns_a_coroutine_is_named() -> None:
    def start(name: str, text: str) -> Any:
        return upper(name, text)

    with world(start, attempts=1) as here:
        here.submit("a")
        assert "is no `async def`" in here.only().error


def test_an_attempt_ends_with_its_time() -> None:
    gated = Gated()
    with world(gated.wait, timeout=0.05, attempts=2) as here:
        here.submit("a")
        assert here.only().error == "TimeoutError: no answer within 0.05 s"
        assert gated.begun == ["a", "a"]


class Stubborn(Gated):
    """Its function ends only when a test lets it go, and ignores that it is cancelled."""

    async def ignore(self, name: str, text: str) -> str:
        while True:
            try:
                return await self.wait(name, text)
            except asyncio.CancelledError:
                pass


def test_async_functions_that_ignore_their_end_leave_places_for_others() -> None:
    gated, loop = Stubborn(), CallLoop(patience=0.01)
    with world(gated.ignore, loop, timeout=0.05, attempts=1) as here:
        here.submit(*(f"{number}" for number in range(8)))
        error = "TimeoutError: no answer within 0.05 s, and the function does not end when it is cancelled"
        assert {each.error for each in here.outcomes(8)} == {error}
        here.submit("late")
        here.settle()
        assert "late" not in gated.begun, "at most as many of them run as there are places"
        gated.let_go("0", "late")
        assert result(here.outcomes(9)[-1]) == "late"
        gated.let_go("*")
        gated.until(lambda: gated.running == [])


def test_a_lost_partition_gives_its_places_to_others_whatever_its_functions_do() -> None:
    gated, loop = Stubborn(), CallLoop(patience=0.01)
    with world(gated.ignore, loop) as one, world(gated.ignore, loop) as two:
        one.submit("a", "b", "c", "d")
        gated.until(lambda: len(gated.running) == 4)
        two.submit("e")
        one.runner.close(0)
        gated.until(lambda: "e" in gated.running)
        gated.let_go("e")
        assert two.only().id == "e"
        gated.let_go("*")


def test_an_attempt_of_a_call_that_was_dropped_ends_no_attempt_of_its_retry() -> None:
    gated, loop = Stubborn(), CallLoop(patience=0.05)
    with world(gated.ignore, loop) as here:
        here.submit("a")
        gated.until(lambda: gated.running == ["a"])
        here.runner.drop(["a"])
        here.submit("a", "b")
        gated.until(lambda: gated.running == ["a", "a", "b"])
        gated.let_go("b")
        here.outcomes(1)
        abandoned = threading.Event()

        def wait_longer_than_its_patience() -> None:
            loop.loop.call_later(0.1, abandoned.set)

        loop.soon(wait_longer_than_its_patience)
        assert abandoned.wait(PATIENCE)
        gated.let_go("*")
        assert [(each.id, each.attempts, each.error) for each in here.outcomes(2)] == [("b", 1, ""), ("a", 1, "")]
        assert here.reports == []


def test_plain_functions_that_never_return_leave_threads_for_others() -> None:
    gated = Gated()
    with world(gated.wait_plain, timeout=0.05, attempts=1) as here:
        here.submit("a", "b")
        assert {each.error for each in here.outcomes(2)} == {"TimeoutError: no answer within 0.05 s"}
        assert gated.running == ["a", "b"], "they have their threads still"
        gated.free.add("c")
        here.submit("c")
        assert [result(each) for each in here.outcomes(3)] == [None, None, "c"]
        gated.let_go("*")


def test_a_fork_is_rejected() -> None:
    with world(lambda name, text: str(os.fork()), attempts=1) as here:
        here.submit("a")
        assert "os.fork() in a handler" in here.only().error


def test_a_call_that_is_pending_is_not_made_twice() -> None:
    gated = Gated()
    with world(gated.wait) as here:
        here.submit("a")
        here.submit("a", "b")
        gated.let_go("*")
        assert sorted(each.id for each in here.outcomes(2)) == ["a", "b"]
        here.settle()
        assert sorted(gated.begun) == ["a", "b"]


def test_a_dropped_call_ends_wherever_it_is() -> None:
    gated = Gated()
    with world(gated.wait, per_key_order=True) as here:
        here.submit("a1", "a2", "a3", key=b"a")
        gated.until(lambda: gated.running == ["a1"])
        here.runner.drop(["a1", "a2", "unknown"])
        gated.until(lambda: gated.running == ["a3"])
        gated.let_go("*")
        assert [each.id for each in here.outcomes(1)] == ["a3"]
        assert gated.begun == ["a1", "a3"]


def test_an_owner_that_has_lost_its_partition_begins_no_attempt() -> None:
    gated = Gated()
    with world(gated.wait) as here:
        here.is_lost = True
        here.submit("a")
        here.settle()
        here.settle()
        assert gated.begun == []


def test_a_close_waits_for_attempts_in_progress_and_begins_none() -> None:
    gated = Gated()
    with world(gated.wait) as here:
        here.submit(*(f"{number}" for number in range(6)))
        gated.until(lambda: len(gated.running) == 4)
        threading.Timer(0.05, gated.let_go, ["*"]).start()
        here.runner.close(PATIENCE)
        assert len(here.outcomes(4)) == 4
        assert len(gated.begun) == 4
        here.submit("late")
        here.settle()
        assert len(gated.begun) == 4


def test_a_close_cancels_what_its_time_does_not_suffice_for() -> None:
    gated = Gated()
    with world(gated.wait) as here:
        here.submit("a")
        gated.until(lambda: gated.running == ["a"])
        here.runner.close(0.01)
        gated.until(lambda: gated.running == [])
        assert here.runner.finished() == []


def test_a_closed_partition_gives_its_places_to_others() -> None:
    gated, loop = Gated(), CallLoop()
    with world(gated.wait, loop) as one, world(gated.wait, loop) as two:
        one.submit("a", "b", "c", "d")
        gated.until(lambda: len(gated.running) == 4)
        two.submit("e")
        one.runner.close(0)
        gated.until(lambda: gated.running == ["e"])
        gated.let_go("*")
        assert two.only().id == "e"


def test_an_outage_is_reported_once_and_costs_the_waiting_calls_no_attempts() -> None:
    answers: dict[str, int] = {}

    async def fail(name: str, text: str) -> str:
        answers[name] = answers.get(name, 0) + 1
        if sum(answers.values()) <= 5:
            raise ConnectionError(f"down for {name}")
        return text

    with world(fail, attempts=3, outage_after=4, backoff=0.001, max_backoff=0.1) as here:
        here.submit(*(f"{number}" for number in range(20)))
        found = here.outcomes(20)
        assert [each.error for each in found] == [""] * 20
        assert len(here.outages) == 2
        assert here.outages[0].startswith("ConnectionError: down for")
        assert here.outages[1] == ""
        assert here.runner.outages() == ()
        assert len(here.reports) < 5, "attempts in an outage are not reported one by one"


def test_a_rate_limits_all_partitions_of_the_process() -> None:
    times: list[float] = []

    async def note(name: str, text: str) -> str:
        times.append(time.monotonic())
        return text

    with world(note, rate=50) as here:
        here.submit(*(f"{number}" for number in range(11)))
        here.outcomes(11)
        assert times[-1] - times[0] >= 10 / 50 * 0.9


def test_a_function_that_blocks_the_loop_is_named() -> None:
    free = threading.Event()

    async def block(name: str, text: str) -> str:
        free.wait(PATIENCE)
        return text

    with world(block) as here:
        assert here.runner.blocked() == ""
        here.submit("a")
        until = time.monotonic() + BLOCKED + PATIENCE
        while not (stack := here.runner.blocked()) and time.monotonic() < until:
            threading.Event().wait(0.01)
        free.set()
        assert "in block" in stack
        assert here.only().id == "a"
        here.settle()
        assert here.runner.blocked() == ""


def test_a_function_that_blocks_the_loop_after_its_attempt_has_ended_is_named() -> None:
    free, idle, loop = threading.Event(), threading.Event(), CallLoop(patience=0.01)
    go_on: list[asyncio.Event] = []

    async def block(name: str, text: str) -> str:
        go_on.append(asyncio.Event())
        with suppress(asyncio.CancelledError):
            await go_on[0].wait()
        await go_on[0].wait()
        free.wait(PATIENCE)
        return text

    def wait_longer_than_a_beat() -> None:
        loop.loop.call_later(1.0, idle.set)

    with world(block, loop, timeout=0.05, attempts=1) as here:
        here.submit("a")
        assert "does not end when it is cancelled" in here.only().error
        loop.soon(wait_longer_than_a_beat)
        assert idle.wait(PATIENCE)
        loop.soon(go_on[0].set)
        until = time.monotonic() + BLOCKED + PATIENCE
        while not (stack := here.runner.blocked()) and time.monotonic() < until:
            threading.Event().wait(0.01)
        free.set()
        assert "in block" in stack


def test_each_attempt_has_its_own_copy_of_the_argument() -> None:
    numbers = count()

    async def change(name: str, items: Any) -> int:
        items.append(1)
        if next(numbers) == 0:
            raise ConnectionError
        return len(items)

    with world(change, argument=list[int], result=int) as here:
        here.runner.submit([CallJob("a", "c", msgspec.msgpack.encode([]), None, 0)])
        assert result(here.only()) == 1
