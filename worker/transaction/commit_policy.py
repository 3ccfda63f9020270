"""When the open transaction commits: pure decisions, the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from statehold.config.sections.processing import CommitSettings


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
