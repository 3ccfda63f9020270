"""The result of `statehold compact` for each partition, publication of full snapshots, and truncation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import msgspec

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.kafka.clients.full_producer import ManifestProducer
from statehold.kafka.tools.compaction_lock import delete_before
from statehold.snapshot import store_orphans
from statehold.snapshot.format import records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import COMPACTION
from statehold.snapshot.restore.discovery import LocatedManifest
from statehold.snapshot.restore.truncate import TruncationOffsets, cut
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.fold.report import TaskReport
from statehold.snapshot.spark.io.write import WrittenFull
from statehold.snapshot.store.base import root_of
from statehold.snapshot.store.by_url import open_store
from statehold.telemetry.log_events import Log

Status = Literal["compacted", "proven", "up to date", "nothing to fold", "failed"]


class CompactionResult(msgspec.Struct, kw_only=True):
    """Result for one partition. `proven`: the folded digest equals the digest in the worker's commit record."""

    partition: int
    status: Status
    proven: bool = False
    #: Transaction of the folded state (D in the rules), and its next input offset.
    transaction: int | None = None
    position: int | None = None
    keys: int | None = None
    #: Bytes of full snapshot and deltas that a restore reads, before and after.
    bytes_before: int | None = None
    bytes_after: int | None = None
    #: Bytes that this run has written, and the number of chunks of earlier full snapshots that the new one shares.
    bytes_written: int | None = None
    shared: int = 0
    #: Offset of the published manifest.
    full: int | None = None
    #: Offsets before which the topics were truncated.
    truncated: TruncationOffsets | None = None
    #: Seconds since the run began.
    seconds: float = 0.0
    cause: str = ""

    @property
    def good(self) -> bool:
        return self.status != "failed"


def publish(
    producer: ManifestProducer, written: Sequence[tuple[FoldPlan, WrittenFull, TaskReport]]
) -> list[LocatedManifest]:
    """Write the manifests. Returns when Kafka has acknowledged all. :raises KafkaTrouble: one was not acknowledged."""
    manifests = {
        plan.partition: found.manifest(
            plan.place,
            plan.goal.commit_record,
            report.header,
            COMPACTION,
            time.time(),
            plan.base if plan.shares else None,
        )
        for plan, found, report in written
    }
    offsets = producer.write({p: records.pack(manifest, manifest.format) for p, manifest in manifests.items()})
    return [LocatedManifest(offsets[p], manifest) for p, manifest in manifests.items()]


class TopicTruncation:
    """Truncates a service's snapshot and changelog topics, and removes orphans from the store."""

    def __init__(self, settings: Settings, names: Names, admin: Admin) -> None:
        self._settings, self._names, self._admin = settings, names, admin

    def starts(self, place: Place) -> tuple[int, int]:
        """Return the current start offsets of the snapshot partition and the changelog partition."""
        deadline = self._settings.restore.deadline
        full, increment = (
            self._admin.bounds(topic, place.partition, deadline, lambda: False)[0]
            for topic in (self._names.snapshot, self._names.changelog)
        )
        return full, increment

    def overtaken(self, place: Place, found: LocatedManifest) -> str:
        """Return why chunks of a full snapshot are gone, because a worker has truncated the topic; '' if they exist."""
        start, _ = self.starts(place)
        return f"its first chunk is {found.ref.low}, the log starts at {start}" if start > found.ref.low else ""

    def due(self, place: Place, full_snapshots: Sequence[LocatedManifest], keep: int) -> TruncationOffsets | None:
        """Return the offsets before which records may be deleted if `keep` full snapshots stay; None if nothing may."""
        found = cut(full_snapshots, keep)
        if found is None:
            return None
        full, increment = self.starts(place)
        return found if found.full > full or found.increment > increment else None

    def cut(self, place: Place, found: TruncationOffsets) -> None:
        """Delete the records before these offsets and wait. :raises KafkaTrouble: Kafka did not delete them."""
        names, ids = self._names, place.topic_ids
        full, increment = self.starts(place)
        if found.full > full:
            delete_before(self._admin, names.snapshot, ids[names.snapshot], place.partition, found.full)
        if found.increment > increment:
            delete_before(self._admin, names.changelog, ids[names.changelog], place.partition, found.increment)

    def remove_orphans(self, places: Sequence[Place], log: Log) -> None:
        """Remove segments that no manifest refers to from the store, as the workers do."""
        root = root_of(self._settings)
        if not root:
            return
        reader = CommittedReader(self._settings, self._names.group, self._admin)
        try:
            for place in places:
                removed = store_orphans.collect(open_store(root), reader, place, time.time())
                if removed:
                    log.info("orphans_removed", partition=place.partition, full_snapshots=removed)
        except Exception as error:  # noqa: BLE001 - no full snapshot depends on it, and the next run tries again
            log.warning("orphans_kept", cause=f"{type(error).__name__}: {error}")
        finally:
            reader.close()
