"""Repeats requests to Kafka while brokers restart, leaders move and coordinators load."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import tenacity

from statehold.common.deadline import Deadline
from statehold.errors import KafkaTrouble, Misconfigured

T = TypeVar("T")

#: a pause between two tries is slept in steps of this, so that a stop ends it
_STEP: Final = 0.05
#: first pause: about one round trip to a distant broker
_FIRST_PAUSE: Final = 0.1
#: longest pause: a broker that restarts is noticed this late at most
_LONGEST_PAUSE: Final = 2.0
#: seconds between two messages about a wait that continues
_REPORT_EVERY: Final = 60.0


def call_patiently(
    call: Callable[[], T],
    seconds: float,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    report: Callable[[KafkaTrouble, float], object] = lambda error, waited: None,
    again: Callable[[KafkaTrouble], bool] = lambda error: True,
    longest: float = _LONGEST_PAUSE,
) -> T:
    """Repeat `call()` until it works, for `seconds` at most, with growing pauses. Pass each failure to `report`.

    :raises KafkaTrouble: the last failure, or the first that no repetition helps (Misconfigured, or not `again`).
    """
    deadline = Deadline(seconds)

    def passes(error: BaseException) -> bool:
        return isinstance(error, KafkaTrouble) and not isinstance(error, Misconfigured) and again(error)

    def report_failure(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, KafkaTrouble):
            report(error, deadline.elapsed)

    def rest(pause: float) -> None:
        paused = Deadline(pause)
        while not cancelled() and not paused.passed:
            time.sleep(min(_STEP, paused.left))

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(passes),
        wait=tenacity.wait_random_exponential(multiplier=_FIRST_PAUSE, min=_FIRST_PAUSE, max=longest),
        stop=lambda _: cancelled() or deadline.passed,
        sleep=rest,
        before_sleep=report_failure,
        reraise=True,
    )
    return retrying(call)


class OncePerMinute:
    """Returns True for the first call and then once a minute, so that a lasting problem does not fill the log."""

    def __init__(self) -> None:
        self._last = -_REPORT_EVERY

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._last < _REPORT_EVERY:
            return False
        self._last = now
        return True
