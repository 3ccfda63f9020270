"""Removes abandoned and truncated full snapshots from a store: no manifest in Kafka names them."""

from __future__ import annotations

from typing import Final

from statehold.ports import Reader
from statehold.snapshot.format.frame import BadFrame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.full_listing import manifests
from statehold.snapshot.store.base import Store, folder_of

#: seconds that a full snapshot may take from its newest segment to its manifest; younger full snapshots are kept
GRACE: Final = 3600.0


def collect(store: Store, reader: Reader, place: Place, now: float) -> list[str]:
    """Delete the orphans of one partition. Return the ids of the removed full snapshots.

    It lists the store first, so that a full snapshot whose manifest comes later is younger than the deleted ones. Every
    process may do it at any time, even a former owner, because ids are never reused.

    :raises StoreTrouble: the store does not answer.
    :raises BadFrame: a manifest cannot be read; nothing was deleted.
    """
    newest: dict[str, float] = {}
    keys: dict[str, list[str]] = {}
    for stored in store.list(folder_of(place)):
        full = stored.key.rsplit("/", 2)[1]
        newest[full] = max(newest.get(full, 0.0), stored.time)
        keys.setdefault(full, []).append(stored.key)
    old = {full for full, time in newest.items() if time < now - GRACE}
    if not old:
        return []
    orphans = sorted(old - _named(reader, place))
    for full in orphans:
        for key in keys[full]:
            store.delete(key)
    return orphans


def _named(reader: Reader, place: Place) -> set[str]:
    """Return the ids of the full snapshots whose manifests are in Kafka."""
    start, end = reader.bounds(place.names.snapshot, place.partition)
    found = set()
    for offset, manifest in manifests(reader, place, start, end):
        if isinstance(manifest, str):
            raise BadFrame(f"{place.names.snapshot}[{place.partition}]@{offset}: {manifest}")
        found.add(manifest.full)
    return found
