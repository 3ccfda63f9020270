"""Delete records that no kept full snapshot needs, after every kept one was verified (rules C3, C4)."""

from __future__ import annotations

from statehold.snapshot.format.records import CommitRecord, FullRef
from statehold.snapshot.shared_chunks import KnownChunks
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools
from statehold.worker.full_snapshots.orphan_cleanup import OrphanCleanup
from statehold.worker.full_snapshots.rekey_deletion import RekeyDeletion
from statehold.worker.full_snapshots.verification import Verification


class Truncation:
    """Used by the partition's thread. After an error too much is kept, and the next full snapshot retries."""

    def __init__(self, tools: Tools, sound: set[FullRef]) -> None:
        self._tools, self._keep = tools, tools.settings.snapshot.keep
        #: a commit record with enough full snapshots has committed
        self.due = False
        #: full snapshots that a restore or a verification has read completely
        self.sound = sound
        #: by family, the newest of `sound` whose chunks are known
        self._chunks: dict[int, KnownChunks] = {}
        self._verification: Verification | None = None
        self._cleanup = OrphanCleanup(tools)
        self._rekeyed = RekeyDeletion(tools)

    @property
    def busy(self) -> bool:
        """The next `step` has something to do, or records are being deleted."""
        return self.due or not self._rekeyed.ended()

    def step(self, refs: tuple[FullRef, ...], record: CommitRecord, wait: float = 0.0) -> tuple[FullRef, ...]:
        """Return the usable snapshots, newest first; an unusable one does not count as kept."""
        self._rekeyed.ended()
        while self.due and (unread := [ref for ref in refs if ref not in self.sound]):
            if self._verification is None:
                self._verification = Verification(self._tools, unread, record, self._chunks)
            if not self._verification.done(wait):
                return refs
            verification, self._verification = self._verification, None
            refs = self._note(verification, refs)
        if self.due:
            self.due = False
            if len(refs) >= self._keep:
                self._delete_behind(refs)
                self._cleanup.collect()
                self._rekeyed.begin(refs)
        return refs

    def close(self) -> None:
        self._cleanup.close()
        self._rekeyed.close()
        if self._verification is not None:
            self._verification.close()

    def _note(self, verification: Verification, refs: tuple[FullRef, ...]) -> tuple[FullRef, ...]:
        log = self._tools.log
        self.sound = (self.sound | set(verification.sound)) & set(refs)
        lows = {ref.low for ref in self.sound}
        self._chunks = {low: found for low, found in (self._chunks | verification.chunks).items() if low in lows}
        for ref, finding in verification.unsound.items():
            log.warning("full_unusable", full=ref.offset, n=ref.first, finding=finding)
        if verification.differs:
            self._tools.metrics.inc(metrics.FULL_SNAPSHOTS, len(verification.differs), "differs")
        if verification.trouble:
            self.due = False
            log.warning("truncation_failed", cause=f"verify the kept full snapshots: {verification.trouble}")
        return tuple(ref for ref in refs if ref not in verification.unsound)

    def _delete_behind(self, refs: tuple[FullRef, ...]) -> None:
        """Delete behind the lowest chunk of all kept snapshots (as `snapshot.truncate.cut`)."""
        names, partition = self._tools.place.names, self._tools.place.partition
        full, increment = min(ref.low for ref in refs), min(ref.increment for ref in refs)
        self._tools.offsets.delete_records(names.snapshot, partition, full)
        self._tools.offsets.delete_records(names.changelog, partition, increment)
        self._tools.log.info("truncated", full_before=full, increment_before=increment, kept=len(refs))
