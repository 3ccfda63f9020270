"""Where each thread of a process is: for `statehold support-bundle`, and on SIGUSR1."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import traceback


def stacks() -> dict[str, list[str]]:
    """Thread name -> its frames, the innermost last, as `file:line function: source`."""
    names = {each.ident: each.name for each in threading.enumerate()}
    return {
        f"{names.get(ident, 'unknown')} ({ident})": [
            f"{frame.filename}:{frame.lineno} {frame.name}: {frame.line}" for frame in traceback.extract_stack(top)
        ]
        for ident, top in sys._current_frames().items()
    }


def on_signal() -> None:
    """From now on SIGUSR1 writes the stack of every thread to standard error, also when the interpreter is stuck in C.

    It ends nothing. A crash in C and SIGABRT, by which systemd ends a process without signs of life, write them too.
    For a process that belongs to statehold: an embedded service leaves signals alone.
    """
    faulthandler.enable(all_threads=True)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
