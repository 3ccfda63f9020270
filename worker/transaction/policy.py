"""When to commit, when to write a delta, when to take a full: pure decisions, the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from statehold.config.sections.processing import CommitSettings, SnapshotSettings

#: so many keys in deltas are restored in a seventh of a second: no reason for a full
_FEW_ENTRIES: Final = 500_000


@dataclass(slots=True)
class CommitPolicy:
    """Counts what the open transaction holds. All times are monotonic seconds."""

    settings: CommitSettings
    records: int = 0
    #: when the open transaction handled its first record
    since: float | None = None
    last_commit: float = 0.0
    #: fewer records than the settings allow; 0: as many as they do
    limit: int = 0

    def handled(self, records: int, now: float) -> None:
        self.records += records
        if self.since is None:
            self.since = now

    def cut(self, records: int) -> None:
        """So many of those were not handled after all."""
        self.records -= records

    def room(self) -> int:
        """How many more records the open transaction may take."""
        return max(0, (self.limit or self.settings.max_records) - self.records)

    def due(self, now: float) -> bool:
        """A transaction with records in it is old or large enough."""
        return self.since is not None and (self.room() == 0 or now - self.since >= self.settings.interval)

    def renewal_due(self, now: float) -> bool:
        """The partition is idle for so long that its producer id should be used again (pitfall P3)."""
        return self.since is None and now - self.last_commit >= self.settings.renew_after

    def wait(self, now: float, idle: float) -> float:
        """How long to wait for records: until the commit is due, or `idle` when nothing is open."""
        return idle if self.since is None else max(0.0, self.since + self.settings.interval - now)

    def close(self) -> int:
        """The open transaction takes no more, or was rolled back; how many records it held."""
        records, self.records, self.since = self.records, 0, None
        return records

    def committed(self, now: float) -> None:
        self.last_commit = now


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
