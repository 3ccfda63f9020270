"""Delete records that no kept full snapshot needs, after every kept one was verified (rules C3, C4)."""

from __future__ import annotations

from statehold.snapshot.format.records import CommitRecord, FullRef
from statehold.worker.common.context import Tools
from statehold.worker.fulls.orphan_cleanup import Orphans
from statehold.worker.fulls.verification import ReadBack


class Truncation:
    """Used by the partition's thread. After an error too much is kept, and the next full snapshot retries."""

    def __init__(self, tools: Tools) -> None:
        self._tools, self._keep = tools, tools.settings.snapshot.keep
        #: a commit record with enough full snapshots has committed
        self.due = False
        #: full snapshots that a restore or a verification has read completely
        self.sound: set[FullRef] = set()
        self._reading: ReadBack | None = None
        self._orphans = Orphans(tools)

    def step(self, refs: tuple[FullRef, ...], mark: CommitRecord, wait: float = 0.0) -> tuple[FullRef, ...]:
        """Return the usable snapshots, newest first; an unusable one does not count as kept."""
        while self.due and (unread := [ref for ref in refs if ref not in self.sound]):
            if self._reading is None:
                self._reading = ReadBack(self._tools, unread, mark)
            if not self._reading.done(wait):
                return refs
            reading, self._reading = self._reading, None
            refs = self._note(reading, refs)
        if self.due:
            self.due = False
            if len(refs) >= self._keep:
                self._delete_behind(refs)
                self._orphans.collect()
        return refs

    def close(self) -> None:
        self._orphans.close()
        if self._reading is not None:
            self._reading.close()

    def _note(self, reading: ReadBack, refs: tuple[FullRef, ...]) -> tuple[FullRef, ...]:
        log = self._tools.log
        self.sound = (self.sound | set(reading.sound)) & set(refs)
        for ref, finding in reading.unsound.items():
            log.warning("full_unusable", full=ref.offset, n=ref.first, finding=finding)
        if reading.trouble:
            self.due = False
            log.warning("truncation_failed", cause=f"verify the kept full snapshots: {reading.trouble}")
        return tuple(ref for ref in refs if ref not in reading.unsound)

    def _delete_behind(self, refs: tuple[FullRef, ...]) -> None:
        """Delete behind the lowest chunk of all kept snapshots (as `snapshot.truncate.cut`)."""
        names, partition = self._tools.place.names, self._tools.place.partition
        full, increment = min(ref.low for ref in refs), min(ref.increment for ref in refs)
        self._tools.offsets.delete_records(names.snapshot, partition, full)
        self._tools.offsets.delete_records(names.changelog, partition, increment)
        self._tools.log.info("truncated", full_before=full, increment_before=increment, kept=len(refs))
