"""A background call reports its error and frees all objects that it held."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator

import pytest
from tests.support.processes import await_true

from statehold.common import threads
from statehold.common.threads import Background
from statehold.errors import OutcomeUnknown


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Objects are freed by reference counts alone, as in a service's process."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_background_call_raises_its_error_at_each_wait() -> None:
    def call() -> None:
        raise OutcomeUnknown("no answer")

    running = Background(call, "call")
    for _ in range(3):
        with pytest.raises(OutcomeUnknown, match="no answer"):
            running.wait()
    good = Background(lambda: None, "good")
    good.wait()
    good.wait()


@pytest.mark.usefixtures("no_collector")
def test_a_failed_call_frees_its_objects_without_the_collector() -> None:
    """A cycle once held a producer with its threads, its sockets and an unread queue of statistics."""

    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    def call() -> None:
        mine = Held()
        held.append(weakref.ref(mine))
        raise OutcomeUnknown("no answer")

    def wait_for_it() -> None:
        running = Background(call, "call")
        try:
            running.wait()
        except OutcomeUnknown:
            return

    wait_for_it()
    assert held[0]() is None


def test_calls_one_after_the_other_are_made_on_one_thread_each_under_its_name() -> None:
    made: list[tuple[str, int]] = []

    def call() -> None:
        thread = threading.current_thread()
        made.append((thread.name, threading.get_ident()))
        assert thread.daemon

    for number in range(5):
        Background(call, f"call-{number}").wait()
    assert [name for name, _ in made] == [f"call-{number}" for number in range(5)]
    assert len({thread for _, thread in made}) == 1


def test_calls_at_the_same_time_have_a_thread_each() -> None:
    meet = threading.Barrier(5)

    def call() -> None:
        meet.wait(60)

    running = [Background(call, "call") for _ in range(5)]
    for each in running:
        each.wait()
        assert each.ended()


def test_a_stuck_call_holds_back_no_other() -> None:
    free = threading.Event()

    def call() -> None:
        free.wait(60)

    stuck = Background(call, "stuck")
    Background(lambda: None, "call").wait()
    assert not stuck.ended()
    assert not stuck.ended(within=0.001)
    free.set()
    stuck.wait()


def test_a_thread_without_a_call_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_IDLE", 0.001)
    made: list[threading.Thread] = []
    for _ in range(200):  # some come while the thread is about to end
        Background(lambda: made.append(threading.current_thread()), "call").wait()
    await_true(lambda: not any(each.is_alive() for each in made), "the end of every thread")
    assert len(made) == 200


def test_a_forked_process_makes_threads_of_its_own() -> None:
    Background(lambda: None, "call").wait()
    if (child := os.fork()) == 0:
        made: list[int] = []
        running = Background(lambda: made.append(1), "call")
        os._exit(0 if running.ended(within=30) and made else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
