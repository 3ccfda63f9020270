"""Decides how far the topics may be truncated behind the kept full snapshots (rules C3, C4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from statehold.snapshot.restore.discovery import LocatedManifest


class TruncationOffsets(NamedTuple):
    """Offsets up to which the snapshot and the changelog topic may be truncated."""

    full: int
    increment: int


def kept(full_snapshots: Sequence[LocatedManifest], keep: int) -> list[LocatedManifest]:
    """Return the `keep` newest of these full snapshots.

    A second one at the same S does not count (rule C4), nor does one that shares chunks with a newer one (rule C6).
    """
    distinct: dict[int, LocatedManifest] = {}
    for found in sorted(full_snapshots, key=lambda each: (-each.manifest.first, -each.manifest.time)):
        distinct.setdefault(found.manifest.first, found)
    newest: dict[int, LocatedManifest] = {}
    for found in distinct.values():
        newest.setdefault(found.ref.low, found)
    return list(newest.values())[:keep]


def cut(full_snapshots: Sequence[LocatedManifest], keep: int) -> TruncationOffsets | None:
    """Return the offsets behind the oldest of `keep` full snapshots; None if there are fewer.

    `full_snapshots` are complete, proven and of one state generation.
    The transaction of its S stays, because the manifest's offset is at or before its header (rule C3). No kept full
    snapshot loses a chunk, wherever on the topic it begins.
    """
    chosen = kept(full_snapshots, keep)
    if len(chosen) < keep:
        return None
    return TruncationOffsets(min(each.ref.low for each in chosen), min(each.manifest.increment for each in chosen))
