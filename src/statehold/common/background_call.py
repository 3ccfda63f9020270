"""One call on a thread of its own, while the caller computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Beside(Protocol):
    """A call that is under way; both belong to the thread that began it."""

    def ended(self, within: float = 0.0) -> bool:
        """Whether it has ended, well or badly; waits for that at most `within` seconds."""
        ...

    def wait(self) -> None:
        """Until the call has ended; raises what it raised."""
        ...


#: begins a call; the name is for its thread
BesideOf = Callable[[Callable[[], None], str], Beside]


class Background:
    """Starts at once. The thread is a daemon: a call that Kafka does not answer keeps no process from ending."""

    def __init__(self, call: Callable[[], None], name: str) -> None:
        self._error: BaseException | None = None
        self._again: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), name=name, daemon=True)
        self._thread.start()

    def ended(self, within: float = 0.0) -> bool:
        self._thread.join(max(0.0, within))
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join()
        # Whoever waits has this object in a frame of the error's traceback. Kept here as well, the error, its frames
        # and the producer in them would be garbage that only the collector finds: weeks later, or never.
        error, self._error = self._error or self._again, None
        if error is None:
            return
        try:
            self._again = _like(error)
            raise error
        finally:
            del error

    def _run(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            self._error = error


def _like(error: BaseException) -> BaseException:
    """The same without frames, for whoever waits once more."""
    try:
        return type(error)(*error.args)
    except Exception:  # noqa: BLE001  a class may want other arguments than it keeps
        return RuntimeError(f"{type(error).__name__}: {error}")
