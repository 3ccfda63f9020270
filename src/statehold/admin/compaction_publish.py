"""What `statehold compact` tells of each partition, how it publishes a full, and what it may delete behind it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

import msgspec

from statehold.admin.snapshot_sinks import SnapshotSinkFactory
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import StableReader
from statehold.kafka.tools.compaction_lock import delete_before
from statehold.snapshot import store_orphans
from statehold.snapshot.format import records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Manifest
from statehold.snapshot.restore.discovery import COMPACTION, Found
from statehold.snapshot.restore.truncate import Cut, cut
from statehold.snapshot.spark.fold.plan import Plan
from statehold.snapshot.spark.fold.report import Report
from statehold.snapshot.spark.io import write as writing
from statehold.snapshot.spark.io.write import Written
from statehold.snapshot.store.base import elsewhere_of, open_store
from statehold.telemetry.log_events import Log

#: manifests that are sent at a time
_PRODUCERS: Final = 8

Status = Literal["compacted", "proven", "up to date", "nothing to fold", "failed"]


class Outcome(msgspec.Struct, kw_only=True):
    """What became of one partition. `proven`: the folded digest is the one that the live worker wrote."""

    partition: int
    status: Status
    proven: bool = False
    #: D: the transaction that the state stands for, and its input position
    transaction: int | None = None
    position: int | None = None
    keys: int | None = None
    #: bytes of full and increments that a restore reads, before and after
    bytes_before: int | None = None
    bytes_after: int | None = None
    #: offset of the manifest that was published
    full: int | None = None
    #: offsets before which the topics were deleted
    truncated: Cut | None = None
    #: since the run began
    seconds: float = 0.0
    cause: str = ""

    @property
    def good(self) -> bool:
        return self.status != "failed"


def publish(settings: Settings, names: Names, written: Sequence[tuple[Plan, Written, Report]]) -> list[Found]:
    """Send the manifests; returns when all are acknowledged. :raises KafkaTrouble: one was not."""
    sink_of = SnapshotSinkFactory(settings, names)

    def send(each: tuple[Plan, Written, Report]) -> Found:
        plan, found, report = each
        manifest, sink = manifest_of(plan, found, report), sink_of.manifests(plan.partition)
        sink.send(records.pack(manifest, manifest.format))
        return Found(writing.acknowledged(sink, 1)[0], manifest)

    with ThreadPoolExecutor(_PRODUCERS, "manifest") as pool:  # a new producer needs half a second to be let in
        return list(pool.map(send, written))


def manifest_of(plan: Plan, written: Written, report: Report) -> Manifest:
    place, mark = plan.place, plan.goal.mark
    return Manifest(
        full=written.full,
        service=mark.service,
        partition=place.partition,
        partitions=place.partitions,
        lineage=mark.lineage,
        first=mark.n,
        through=mark.n,
        positions=mark.positions,
        topic_ids=place.topic_ids,
        digest=mark.digest,
        increment=report.header,
        low=written.low,
        store=written.store if written.checksums else "",
        segments=written.segments,
        checksums=tuple(written.checksums),
        keys=written.keys,
        size=written.size,
        maker=COMPACTION,
        writer=place.writer,
        time=int(time.time() * 1000),
        format=mark.format,
        schemas=mark.schemas,
    )


class Kept:
    """Where the topics of a service begin, and what is deleted of them."""

    def __init__(self, settings: Settings, names: Names, admin: Admin) -> None:
        self._settings, self._names, self._admin = settings, names, admin

    def starts(self, place: Place) -> tuple[int, int]:
        """Where the full and the increment partition begin now."""
        deadline = self._settings.restore.deadline
        full, increment = (
            self._admin.bounds(topic, place.partition, deadline, lambda: False)[0]
            for topic in (self._names.snapshot, self._names.changelog)
        )
        return full, increment

    def worth(self, place: Place, fulls: Sequence[Found], keep: int) -> Cut | None:
        """What may be deleted behind `keep` fulls; None when that is nothing."""
        found = cut(fulls, keep)
        if found is None:
            return None
        full, increment = self.starts(place)
        return found if found.full > full or found.increment > increment else None

    def cut(self, place: Place, found: Cut) -> None:
        """Delete what lies before, and wait for it. :raises KafkaTrouble: it was not done."""
        names, ids = self._names, place.topic_ids
        full, increment = self.starts(place)
        if found.full > full:
            delete_before(self._admin, names.snapshot, ids[names.snapshot], place.partition, found.full)
        if found.increment > increment:
            delete_before(self._admin, names.changelog, ids[names.changelog], place.partition, found.increment)

    def remove_orphans(self, places: Sequence[Place], log: Log) -> None:
        """As the workers do: what no manifest names any more leaves the store, if there is one."""
        root = elsewhere_of(self._settings)
        if not root:
            return
        reader = StableReader(self._settings, self._names.group, self._admin)
        try:
            for place in places:
                removed = store_orphans.collect(open_store(root), reader, place, time.time())
                if removed:
                    log.info("orphans_removed", partition=place.partition, fulls=removed)
        except Exception as error:  # noqa: BLE001 - no full depends on it, and the next one tries again
            log.warning("orphans_kept", cause=f"{type(error).__name__}: {error}")
        finally:
            reader.close()
