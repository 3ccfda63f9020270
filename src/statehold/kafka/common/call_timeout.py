"""Bounds calls into librdkafka that may not return, whatever timeout they got."""

from __future__ import annotations

from collections.abc import Callable

from statehold.common.threads import Background

#: seconds to wait beyond a call's own timeout, because its own error says more than a timeout
GRACE = 1.0
#: seconds beyond its own timeout after which a call counts as stuck and the process leaves
STUCK_AFTER = 30.0


def bounded(call: Callable[[float], object], timeout: float) -> None:
    """Run `call(timeout)` on a thread of its own. Raise what it raises.

    :raises TimeoutError: it did not return. Its daemon thread stays in the call, so do not use its objects again.
    """

    def run() -> None:
        call(timeout)

    running = Background(run, "bounded")
    if not running.ended(timeout + GRACE):
        raise TimeoutError(f"the call did not return within {timeout + GRACE:.0f} s, with a timeout of {timeout:.0f} s")
    running.wait()
