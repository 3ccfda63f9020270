"""Stacks of all threads, for `statehold support-bundle` and on SIGUSR1."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import traceback


def stacks() -> dict[str, list[str]]:
    """Return the frames of each thread by name, the innermost last, as `file:line function: source`."""
    names = {each.ident: each.name for each in threading.enumerate()}
    return {
        f"{names.get(ident, 'unknown')} ({ident})": [
            f"{frame.filename}:{frame.lineno} {frame.name}: {frame.line}" for frame in traceback.extract_stack(top)
        ]
        for ident, top in sys._current_frames().items()
    }


def on_signal() -> None:
    """Let SIGUSR1 write the stack of every thread to standard error, also while the interpreter is stuck in C.

    The process continues. A crash in C and SIGABRT, which systemd's watchdog sends, write them, too.
    Call it in a process that statehold owns: an embedded service leaves signals alone.
    """
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
