"""A background call reports its error and frees all objects that it held."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

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
