"""Work that a partition does not wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable

#: begins a call; what it returns waits so many seconds, and tells whether the call has ended
Aside = Callable[[Callable[[], None], str], Callable[[float], bool]]


def on_a_thread(call: Callable[[], None], name: str) -> Callable[[float], bool]:
    """`Aside`, for real. The thread is a daemon: what Kafka does not answer keeps no process from ending."""
    thread = threading.Thread(target=call, name=name, daemon=True)
    thread.start()

    def ended(wait: float) -> bool:
        thread.join(max(0.0, wait))
        return not thread.is_alive()

    return ended
