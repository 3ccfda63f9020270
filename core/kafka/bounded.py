"""A call into librdkafka that may not come back, whatever timeout it was given."""

from __future__ import annotations

import threading
from collections.abc import Callable

#: seconds beyond its own timeout that a call is waited for: its own error says more than ours
GRACE = 1.0


def bounded(call: Callable[[float], object], timeout: float) -> None:
    """`call(timeout)` on a thread of its own; raises what it raises.

    :raises TimeoutError: it has not come back. The thread stays in it, as a daemon, and what it uses must not be used
        again.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call(timeout)
        except BaseException as error:  # noqa: BLE001  raised by the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="bounded", daemon=True)
    thread.start()
    thread.join(timeout + GRACE)
    if thread.is_alive():
        raise TimeoutError(f"the call did not come back in {timeout + GRACE:.0f} s, though given {timeout:.0f} s")
    if errors:
        raise errors[0]
