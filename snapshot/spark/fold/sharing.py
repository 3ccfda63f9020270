"""Decides whether a compaction writes only the keys that changed since its base (rules S7, C6). Does not use Spark.

It continues only a family that a compaction has written. A worker continues its own family at any time, and two
writers would give different chunks the same number.
"""

from __future__ import annotations

import msgspec

from statehold.errors import DamagedIncrement
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import COMPACTION, Chunk
from statehold.snapshot.restore.discovery import LocatedManifest
from statehold.snapshot.shared_chunks import most_rows
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.store.base import StoreTrouble, folder_of
from statehold.snapshot.store.by_url import open_store

#: Most keys whose former values one task holds: with keys and values of 100 bytes about 300 MB.
_MOST_CHANGED = 1_000_000


class Continued(msgspec.Struct, frozen=True):
    """The full snapshot whose chunks the next one shares, as the task that writes it needs it."""

    place: Place
    base: LocatedManifest
    #: Most keys that may have changed; with more of them the next one is whole.
    most: int


def sharing(reader: Reader, plan: FoldPlan, share: int, root: str) -> FoldPlan:
    """Return the plan, with `shares` set if the new full snapshot may share the chunks of the base.

    `share` is `snapshot.share`, and `root` the store that takes new full snapshots, '' for Kafka.
    """
    base = plan.base
    if not share or plan.up_to_date or base is None or not _may_continue(plan, base, share, root):
        return plan
    if _abandoned(reader, plan.place, base, root):
        return plan
    return msgspec.structs.replace(plan, shares=True)


def continued(plan: FoldPlan) -> Continued | None:
    """Return what the task has to know about the base; None: it writes a whole full snapshot."""
    if not plan.shares or plan.base is None:
        return None
    most = most_rows(plan.goal.commit_record.keys) - plan.base.manifest.loads
    return Continued(plan.place, plan.base, min(most, _MOST_CHANGED))


def _may_continue(plan: FoldPlan, base: LocatedManifest, share: int, root: str) -> bool:
    manifest, goal = base.manifest, plan.goal.commit_record
    members = sum(each.manifest.full == manifest.full for each in plan.full_snapshots)
    return (
        goal.format >= frame.SHARED
        and manifest.maker == COMPACTION
        and members <= share
        # Its writer has compared the digest with that of its commit record.
        and manifest.first == manifest.through
        and bool(manifest.digest and manifest.checksums)
        and manifest.loads < most_rows(goal.keys)
        and (manifest.store.startswith(f"{root.rstrip('/')}/{folder_of(plan.place)}/") if root else not manifest.store)
    )


def _abandoned(reader: Reader, place: Place, base: LocatedManifest, root: str) -> bool:
    """Return whether there may be chunks of the family that no manifest names: a run was killed while it wrote.

    The next chunks would have the same numbers.
    """
    manifest, topic = base.manifest, place.names.snapshot
    try:
        if manifest.store:
            names = (stored.key.rpartition("/")[2] for stored in open_store(root).list(_folder(place, manifest.full)))
            return any(name.isdecimal() and int(name) >= manifest.segments for name in names)
        end = reader.bounds(topic, place.partition)[1]
        for batch in reader.read(topic, place.partition, base.offset + 1, end):
            for message in batch:
                record = records.unpack(message.value())
                if isinstance(record, Chunk) and record.full == manifest.full:
                    return True
    except (frame.BadFrame, OutOfRange, DamagedIncrement, StoreTrouble):
        return True
    return False


def _folder(place: Place, full: str) -> str:
    return f"{folder_of(place)}/{full}"
