"""A call into librdkafka that may not come back, whatever timeout it was given."""

from __future__ import annotations

from collections.abc import Callable

from statehold.common.background_call import Background

#: seconds beyond its own timeout that a call is waited for: its own error says more than ours
GRACE = 1.0
#: seconds beyond its own timeout after which a call counts as one that never comes back, and the process leaves
STUCK_AFTER = 30.0


def bounded(call: Callable[[float], object], timeout: float) -> None:
    """`call(timeout)` on a thread of its own; raises what it raises.

    :raises TimeoutError: it has not come back. The thread stays in it, as a daemon, and what it uses must not be used
        again.
    """

    def run() -> None:
        call(timeout)

    beside = Background(run, "bounded")
    if not beside.ended(timeout + GRACE):
        raise TimeoutError(f"the call did not come back in {timeout + GRACE:.0f} s, though given {timeout:.0f} s")
    beside.wait()
