"""A process of a test ends with it, and keeps nobody waiting for what it never says."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ending(process: subprocess.Popen[Any], seconds: float = 120.0) -> Iterator[None]:
    """At the end of the block it is told to end, and killed if it does not; killed in a block that takes longer."""
    watch = threading.Timer(seconds, process.kill)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
