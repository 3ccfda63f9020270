"""Truncation behind the kept full snapshots (rules C3, C4)."""

from __future__ import annotations

import msgspec

from statehold.snapshot.format.records import Manifest
from statehold.snapshot.restore.discovery import LocatedManifest
from statehold.snapshot.restore.truncate import TruncationOffsets, cut, kept


def full(offset: int, first: int, low: int, increment: int, time: int = 0) -> LocatedManifest:
    return LocatedManifest(
        offset,
        Manifest(
            full=f"{offset}",
            service="service",
            partition=0,
            partitions=1,
            lineage="lineage",
            first=first,
            through=first,
            positions={},
            increment=increment,
            low=low,
            time=time,
        ),
    )


def test_two_full_snapshots_of_one_state_count_once_and_the_younger_is_kept() -> None:
    twice = [full(90, 7, 80, 70, time=2), full(60, 7, 50, 70, time=1)]
    older = full(40, 3, 30, 20)
    assert kept([older, *twice], 2) == [twice[0], older]
    assert cut(twice, 2) is None, "with one state kept nothing may be deleted for two"


def test_truncation_stays_behind_the_first_chunk_and_the_first_delta_of_every_kept_snapshot() -> None:
    newer, older, oldest = full(90, 9, 10, 60), full(80, 7, 50, 40), full(30, 3, 5, 2)
    assert cut([oldest, older, newer], 2) == TruncationOffsets(10, 40)
    assert cut([oldest, older, newer], 3) == TruncationOffsets(5, 2)
    assert cut([oldest, older, newer], 4) is None


def test_full_snapshots_that_share_chunks_count_once() -> None:
    """Rule C6: damage of a chunk that they share costs both."""
    newest, before = (
        LocatedManifest(each.offset, msgspec.structs.replace(each.manifest, family=50))
        for each in (full(90, 9, -1, 60), full(80, 7, 50, 40))
    )
    other = full(30, 3, 5, 2)
    assert kept([other, before, newest], 2) == [newest, other]
    assert cut([before, newest], 2) is None
    assert cut([other, before, newest], 2) == TruncationOffsets(5, 2)
    assert cut([before, newest], 1) == TruncationOffsets(50, 60), "the chunks of the first one stay"


def test_a_manifest_cannot_have_its_own_chunks_deleted() -> None:
    wrong = LocatedManifest(90, msgspec.structs.replace(full(90, 9, 10, 60).manifest, family=89))
    assert cut([wrong], 1) == TruncationOffsets(10, 60)
