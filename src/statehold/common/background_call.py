"""Runs one call on its own thread, while the caller computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class CallInProgress(Protocol):
    """A call in progress. Only the thread that began it uses this object."""

    def ended(self, within: float = 0.0) -> bool:
        """Return whether it has ended, with or without an error; wait at most `within` seconds."""
        ...

    def wait(self) -> None:
        """Wait for the end of the call; raise what it raised."""
        ...


#: begins a call; the name is for its thread
BeginCall = Callable[[Callable[[], None], str], CallInProgress]


class Background:
    """Starts at once. The thread is a daemon, so a call that Kafka does not answer does not keep a process alive."""

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
        # The waiting caller has this object in a frame of the error's traceback. If the error stayed here, it would be
        # in a reference cycle with its frames and their producer, which the collector finds weeks later, or never.
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
    """Return the same error without frames, for a caller that waits once more."""
    try:
        return type(error)(*error.args)
    except Exception:  # noqa: BLE001  a class may want other arguments than it keeps
        return RuntimeError(f"{type(error).__name__}: {error}")
