"""Decides which messages systemd gets about all processes of a supervisor. Pure except for its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from statehold.ops.supervisor import aggregate
from statehold.ops.supervisor.aggregate import ProcessView

#: microseconds by which each look extends a start in progress
_EXTENSION: Final = 30_000_000


class FleetMessages:
    """READY when every process has been live; a process that stays down does not delay it."""

    def __init__(self) -> None:
        self._ready = self._stopping = False
        self._sentence = ""

    def next(self, views: Sequence[ProcessView], roll: str, *, stopping: bool, watched: bool) -> dict[str, object]:
        """Return the messages to send now. `watched`: systemd expects a sign of life, which is that this loop turns."""
        values: dict[str, object] = {}
        if stopping and not self._stopping:
            self._stopping, values["STOPPING"] = True, 1
        if not self._ready and not stopping:
            states = {view.state for view in views}
            if "live" in states and states <= {"live", "down"}:
                self._ready, values["READY"] = True, 1
            else:
                values["EXTEND_TIMEOUT_USEC"] = _EXTENSION
        if watched:
            values["WATCHDOG"] = 1
        if (now := aggregate.sentence(views, roll)) != self._sentence:
            self._sentence, values["STATUS"] = now, now
        return values
