"""End a process with its test, and kill one that runs too long."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ending(process: subprocess.Popen[Any], seconds: float = 120.0) -> Iterator[None]:
    """Stop the process at the end of the block, by SIGKILL if it does not end; kill it after `seconds` in the block."""
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
