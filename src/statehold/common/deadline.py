"""A deadline on the monotonic clock."""

from __future__ import annotations

import time


class Deadline:
    """Begins to run when it is made."""

    def __init__(self, seconds: float) -> None:
        self._began, self._seconds = time.monotonic(), seconds

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds until it passes; 0 afterwards."""
        return max(0.0, self._seconds - self.elapsed)

    @property
    def passed(self) -> bool:
        return self.elapsed >= self._seconds
