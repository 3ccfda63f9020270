"""A worker's wall clock, which a fault may step: `time.time` as the service and its handler see it, in tests only.

librdkafka's own clock is not touched, nor is the one that budgets and timeouts go by.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


def file_of(directory: Path | str, instance: str) -> Path:
    """Holds the seconds by which the instance's clock is off."""
    return Path(directory) / f"clock-{instance}"


def install(directory: str) -> None:
    """In a worker, before its service is made."""
    reported, real = file_of(directory, os.environ.get("STATEHOLD_SERVICE__INSTANCE", "")), time.time

    def stepped() -> float:
        try:
            return real() + float(reported.read_text() or 0)
        except FileNotFoundError:
            return real()

    time.time = stepped
