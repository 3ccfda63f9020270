"""How a question to Kafka is repeated: brokers come and go, leaders move, coordinators load."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import tenacity

from statehold.errors import KafkaTrouble, Misconfigured

T = TypeVar("T")

#: a sleep between two tries is cut into steps of this, so that a stop ends it
_STEP: Final = 0.05
#: so often whoever waits is told that it still waits
_TELL_EVERY: Final = 60.0


def patiently(
    call: Callable[[], T],
    seconds: float,
    *,
    cancelled: Callable[[], bool] = lambda: False,
    tell: Callable[[KafkaTrouble, float], object] = lambda error, waited: None,
    again: Callable[[KafkaTrouble], bool] = lambda error: True,
    longest: float = 2.0,
) -> T:
    """`call()` until it works, for `seconds` at most, with growing pauses; after each try `tell(error, waited)`.

    :raises KafkaTrouble: the last one, or the first that no repetition mends (Misconfigured, or not `again`).
    """
    began = time.monotonic()

    def passes(error: BaseException) -> bool:
        return isinstance(error, KafkaTrouble) and not isinstance(error, Misconfigured) and again(error)

    def told(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, KafkaTrouble):
            tell(error, time.monotonic() - began)

    def rest(pause: float) -> None:
        until = time.monotonic() + pause
        while not cancelled() and (left := until - time.monotonic()) > 0:
            time.sleep(min(_STEP, left))

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(passes),
        wait=tenacity.wait_random_exponential(multiplier=0.1, min=0.1, max=longest),
        stop=lambda _: cancelled() or time.monotonic() - began >= seconds,
        sleep=rest,
        before_sleep=told,
        reraise=True,
    )
    return retrying(call)


class OncePerMinute:
    """True for the first call, and then once a minute: a thing that lasts is told of, and fills no log."""

    def __init__(self) -> None:
        self._last = -_TELL_EVERY

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._last < _TELL_EVERY:
            return False
        self._last = now
        return True
