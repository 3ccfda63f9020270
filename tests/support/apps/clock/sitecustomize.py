"""A wall clock that can be put forward and back, by the seconds in the file PROBE_CLOCK.

This folder comes on PYTHONPATH; nothing else of the process is changed.

libfaketime stops a JVM's and librdkafka's timed waits as well; here only what Python code asks for is wrong.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_file, _now = os.environ.get("PROBE_CLOCK", ""), time.time


def _stepped() -> float:
    try:
        with open(_file, encoding="ascii") as step:
            return _now() + float(step.read() or 0)
    except OSError:
        return _now()


def _nanoseconds() -> int:
    return int(_stepped() * 1e9)


if _file:
    stepped: Callable[[], float] = _stepped
    time.time, time.time_ns = stepped, _nanoseconds
