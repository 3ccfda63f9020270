"""Keeps samples of the last minutes for the console's charts. The caller serialises threads."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

#: with a sample every two seconds: five minutes
_KEPT: Final = 150


class History:
    """Each sample: a number, the time, and per partition lag, committed records so far, mailbox."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._samples: deque[dict[str, Any]] = deque(maxlen=kept)
        self._number = 0

    def note(self, status: dict[str, Any]) -> None:
        """Add a sample."""
        self._number += 1
        partitions = {
            each["partition"]: [each["lag"], each["live"]["records"] if each["live"] else None, each["mailbox"]]
            for each in status["partitions"]
        }
        self._samples.append({"number": self._number, "time": time.time(), "partitions": partitions})

    def after(self, number: int) -> list[dict[str, Any]]:
        """Return the samples with a greater number, oldest first."""
        return [sample for sample in self._samples if sample["number"] > number]
