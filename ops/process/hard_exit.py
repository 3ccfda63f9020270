"""Ends a process in limited time, because closing a Kafka client may wait for frozen brokers."""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
from contextlib import suppress
from typing import Final

#: seconds that the interpreter has to finalize
GRACE: Final = 10.0


def limit_the_end() -> None:
    """Give the process `GRACE` seconds to end by itself.

    Then it ends with exit code 1 and writes the stacks of its threads. A C thread does it, because a finalizing
    interpreter runs no Python threads.
    """
    faulthandler.dump_traceback_later(GRACE, exit=True)


def end_now(code: int) -> None:
    """End without waiting for threads that hang in a call; exit handlers still run."""
    with suppress(Exception):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
