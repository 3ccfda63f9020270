"""The append-only history of a run: one JSON line for everything that was done or seen, in the order of happening."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any


class History:
    """Any thread may write. Times are seconds since the run began, by a monotonic clock."""

    def __init__(self, path: Path, began: float | None = None) -> None:
        self.began = time.monotonic() if began is None else began
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        #: what is printed as the timeline
        self.lines: list[tuple[float, str]] = []

    def now(self) -> float:
        return time.monotonic() - self.began

    def note(self, kind: str, **fields: Any) -> float:
        """One line; returns its time."""
        with self._lock:
            at = self.now()
            if not self._file.closed:
                self._file.write(json.dumps({"t": round(at, 4), "kind": kind, **fields}) + "\n")
        return at

    def tell(self, text: str) -> None:
        """A line for people, too."""
        at = self.note("told", text=text)
        self.lines.append((at, text))
        print(f"{at:8.2f} s  {text}", flush=True)

    def close(self) -> None:
        with self._lock:
            self._file.close()


class Patience:
    """Ends a wait after `seconds` without progress, however long the progress itself takes."""

    def __init__(self, history: History, seconds: float) -> None:
        self._history, self._seconds = history, seconds
        self._seen: object = None
        self._since = history.now()

    def over(self, progress: object) -> bool:
        """Ask again and again; `progress` is whatever changes with it."""
        now = self._history.now()
        if progress != self._seen:
            self._seen, self._since = progress, now
        return now - self._since > self._seconds
