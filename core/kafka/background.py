"""One call on a thread of its own, while the caller computes."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Starts at once. The thread is a daemon: a call that Kafka does not answer keeps no process from ending."""

    def __init__(self, call: Callable[[], None], name: str) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the call has ended; raises what it raised."""
        self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            self._error = error
