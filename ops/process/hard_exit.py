"""The end of a process that must end: a client that lets go of its connections may wait for brokers that are frozen."""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
from contextlib import suppress
from typing import Final

#: seconds that the interpreter has for its own end
GRACE: Final = 10.0


def limit_the_end() -> None:
    """From now on the process has `GRACE` seconds to end by itself.

    Then it ends with exit code 1 and tells where its threads are. By a thread of C, because at its end the interpreter
    runs no thread of ours any more.
    """
    faulthandler.dump_traceback_later(GRACE, exit=True)


def end_now(code: int) -> None:
    """A thread is lost in a call: end without waiting for anything, exit handlers aside."""
    with suppress(Exception):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
