"""Signals to `statehold run` before its service runs, and after: a stop is no error at any moment.

Imports nothing of weight: this comes before everything else.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_asked = False


def listen() -> None:
    """From now on SIGTERM and SIGINT end the process with exit code 0. For the main thread.

    Nothing has been done yet that would have to be undone but by `finally`. `Service.run` puts its own handlers in the
    place of these while it runs.
    """
    for number in _SIGNALS:
        signal.signal(number, _end)


def obey() -> None:
    """End now if a signal came whose SystemExit was lost in somebody's bare `except`."""
    if _asked:
        sys.exit(0)


def ignore() -> None:
    """The service has ended and the exit code is known: a signal has nothing left to stop."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end(_number: int, _frame: FrameType | None) -> None:
    global _asked  # noqa: PLW0603 - a signal handler has no other place
    _asked = True
    sys.exit(0)
