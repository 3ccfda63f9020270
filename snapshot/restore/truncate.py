"""What may be deleted behind the kept fulls: pure (rules C3, C4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from statehold.snapshot.restore.discovery import Found


class Cut(NamedTuple):
    """Offsets before which the full and the increment topic may be deleted."""

    full: int
    increment: int


def kept(fulls: Sequence[Found], keep: int) -> list[Found]:
    """The `keep` newest of these fulls, one for each S: another at the same S does not count (rule C4)."""
    distinct: dict[int, Found] = {}
    for found in sorted(fulls, key=lambda each: (-each.manifest.first, -each.manifest.time)):
        distinct.setdefault(found.manifest.first, found)
    return list(distinct.values())[:keep]


def cut(fulls: Sequence[Found], keep: int) -> Cut | None:
    """Behind the oldest of `keep` whole, proven fulls of one lineage; None while there are fewer.

    The increment of its S stays: the manifest's offset is at or before its header (rule C3). No kept full loses a
    chunk, wherever on the topic it begins.
    """
    chosen = kept(fulls, keep)
    if len(chosen) < keep:
        return None
    return Cut(min(each.ref.low for each in chosen), min(each.manifest.increment for each in chosen))
