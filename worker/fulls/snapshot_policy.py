"""Which commits carry a delta, and when the next full snapshot starts: pure decisions, the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from statehold.config.sections.processing import SnapshotSettings

#: so many keys in deltas are restored in a seventh of a second: no reason for a full snapshot
_FEW_ENTRIES: Final = 500_000


@dataclass(slots=True)
class SnapshotPolicy:
    """Which commits carry a delta, and when the next full starts."""

    settings: SnapshotSettings
    last_delta: float
    last_full: float
    #: bytes of increments, and keys written in deltas, since the last full started
    bytes: int = 0
    entries: int = 0
    #: keys of the state
    keys: int = 0
    #: a full was asked for by a command or a tool
    asked: bool = False
    #: the next mark must carry a delta, because it refers to a full for the first time (rule S1)
    force_delta: bool = False

    @property
    def mode(self) -> Literal["commit", "interval", "off"]:
        interval = self.settings.delta_interval
        return interval if isinstance(interval, str) else "interval"

    def delta_due(self, now: float) -> bool:
        interval = self.settings.delta_interval
        if isinstance(interval, str):
            return interval == "commit"
        return self.force_delta or now - self.last_delta >= interval

    def full_due(self, now: float) -> bool:
        if self.asked:
            return True
        if not self.settings.periodic_full or self.bytes == 0:
            return False
        return (
            self.bytes >= self.settings.full_bytes
            or now - self.last_full >= self.settings.full_interval
            or self._outgrown()
        )

    def _outgrown(self) -> bool:
        """The deltas cost a restore more than the state itself does."""
        growth = self.settings.full_growth
        return growth > 0 and self.mode != "off" and self.entries >= max(_FEW_ENTRIES, growth * self.keys)

    def committed(self, now: float, *, delta: bool, increment_bytes: int, entries: int, keys: int) -> None:
        self.bytes += increment_bytes
        self.entries, self.keys = self.entries + entries, keys
        if delta:
            self.last_delta, self.force_delta = now, False

    def full_started(self, now: float) -> None:
        self.last_full, self.bytes, self.entries, self.asked = now, 0, 0, False
