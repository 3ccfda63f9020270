"""A call that does not come back costs its thread, not the partition."""

from __future__ import annotations

import threading

import pytest

from statehold.kafka.common import call_timeout as module
from statehold.kafka.common.call_timeout import bounded


def test_a_call_gets_its_timeout_and_raises_its_error() -> None:
    given: list[float] = []
    bounded(given.append, 3.0)
    assert given == [3.0]
    with pytest.raises(ZeroDivisionError):
        bounded(lambda left: 1 / 0, 3.0)


def test_a_call_that_does_not_return_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.05)
    end, over = threading.Event(), threading.Event()

    def stuck(left: float) -> None:
        end.wait(60)
        over.set()

    with pytest.raises(TimeoutError, match="did not return"):
        bounded(stuck, 0.05)
    assert not over.is_set()
    end.set()
