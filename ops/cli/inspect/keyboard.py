"""Reads one key at a time from the terminal, without Enter."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from typing import Any, Self


class Keyboard:
    """`with Keyboard() as keys: keys.wait(1.0)`; the terminal is as before afterwards. Without one it only waits."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Return the key pressed within that time, or ''."""
        if self._before is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""
