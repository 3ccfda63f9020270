"""Handles signals to `statehold run` before and after its service runs, so that a stop is never an error.

It imports little, because it runs before everything else.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_asked = False


def listen() -> None:
    """Let SIGTERM and SIGINT end the process with exit code 0. Call it on the main thread.

    Until then `finally` blocks suffice to clean up. `Service.run` replaces these handlers with its own
    while it runs.
    """
    sys.unraisablehook = _report_unraisable
    for number in _SIGNALS:
        signal.signal(number, _end)


def obey() -> None:
    """End now if a bare `except` of other code has swallowed the SystemExit of a signal."""
    if _asked:
        sys.exit(0)


def ignore() -> None:
    """Ignore signals, because the service has ended and the exit code is known."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _report_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Report an error that Python cannot raise, as of a destructor, but not the SystemExit of a signal: see `obey`."""
    if not (_asked and isinstance(unraisable.exc_value, SystemExit)):
        sys.__unraisablehook__(unraisable)


def _end(_number: int, _frame: FrameType | None) -> None:
    global _asked  # noqa: PLW0603 - a signal handler has no other place
    _asked = True
    sys.exit(0)
