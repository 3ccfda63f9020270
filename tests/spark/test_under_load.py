"""Compaction in parallel with running workers, one of them killed; and a state of a million keys (6.1)."""

from __future__ import annotations

import time

import pytest
from tests.spark.compactions import NO_SNAPSHOTS, Looking
from tests.support.figures import Figure
from tests.support.stage import Stage

from statehold.snapshot.spark.io.source import Session


@pytest.mark.long
def test_a_compaction_under_load_with_a_worker_killed(spark: Session, staged: Stage) -> None:
    """What it makes is what the next owner has in memory, and outputs are exactly once."""
    look = Looking(spark, staged)
    first = staged.process("first", **NO_SNAPSHOTS).await_live(0, 1)
    with staged.load(1000):
        staged.await_progress()
        assert look.statuses(keep=1) == ["compacted", "compacted"]
        first.kill()
        second = staged.process("second", **NO_SNAPSHOTS)
        made = look.compact(keep=1)  # the group waits for the dead member meanwhile
        assert all(each.good for each in made), made
        second.await_live(0, 1)
        staged.await_progress()
        last = look.compact(keep=1)
        assert [each.status for each in last] == ["compacted", "compacted"], last
        assert all(event["full"] is not None for event in second.events("restored"))
    staged.await_all()
    assert second.stop() == 0
    look.check_restores_from(*(each.full for each in last))


@pytest.mark.long
def test_a_million_keys(spark: Session, staged: Stage, figure: Figure) -> None:
    look = Looking(spark, staged)
    look.feed(1_500_000, keys=2_000_000)
    began = time.monotonic()
    made = look.compact()
    seconds = time.monotonic() - began
    assert [each.status for each in made] == ["compacted", "compacted"]
    keys = sum(each.keys or 0 for each in made)
    assert keys > 1_000_000
    figure("compaction of a million keys from incremental snapshots", keys / seconds, "keys/s")
    print(f"{keys} keys, 1,500,000 entries in {seconds:.1f} s: {1_500_000 / seconds:.0f} entries/s", made)
    look.feed(200_000, keys=2_000_000)
    began = time.monotonic()
    again = look.compact()
    seconds = time.monotonic() - began
    assert [each.status for each in again] == ["compacted", "compacted"]
    print(f"again from the full and 200,000 entries: {seconds:.1f} s", again)
    look.check_restores_from(*(each.full for each in again))
