"""`statehold compact` where the worker's full snapshots are in a directory: the base is read from there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.compactions import Looking
from tests.support.local_service import Local
from tests.support.stage import Stage

from statehold.snapshot.spark.io.source import Session


@pytest.mark.long
def test_a_base_in_a_directory_is_folded_and_a_damaged_one_is_reported(
    spark: Session, staged: Stage, tmp_path: Path
) -> None:
    """What was before the full is truncated: without the chunks from the directory there is no state to compact."""
    full_snapshots = tmp_path / "fulls"
    stored = {"STATEHOLD_SNAPSHOT__FULL_STORE": f"file://{full_snapshots}", "STATEHOLD_SNAPSHOT__KEEP": "1"}
    bare = {"STATEHOLD_SNAPSHOT__PERIODIC_FULL": "off", "STATEHOLD_SNAPSHOT__ON_STOP": "off"} | stored
    look = Looking(spark, staged, **stored)
    for settings, keys in ((stored, 3000), (bare, 300)):
        with Local(staged, **settings):
            staged.feed(3000, keys=keys)
            staged.await_all()
    damaged = next(full_snapshots.glob("*/0/*/000000"))
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[: len(whole) // 2])

    outcomes = look.compact()

    assert [each.status for each in outcomes] == ["failed", "compacted"], outcomes
    assert [each.proven for each in outcomes] == [False, True], outcomes
    damaged.write_bytes(whole)
    assert [each.status for each in look.compact()] == ["compacted", "up to date"]
    look.check_restores_from_compaction()
