"""`statehold compact` with `snapshot.share`: on a real broker, by a real Spark."""

from __future__ import annotations

from tests.spark.compactions import Looking
from tests.support.local_service import Local
from tests.support.stage import Stage

from statehold.snapshot.spark.io.source import Session

SHARE = {"STATEHOLD_SNAPSHOT__SHARE": "2"}


def test_a_life_of_families(spark: Session, staged: Stage) -> None:
    """A whole one, two that share its chunks, a whole one; what the family of the newest needs stays."""
    look = Looking(spark, staged, **SHARE)
    shared = []
    for _ in range(4):
        look.feed(500, keys=400)
        outcomes = look.compact(keep=1)
        assert [(each.status, each.proven) for each in outcomes] == [("compacted", True)] * 2, outcomes
        shared.append([each.shared > 0 for each in outcomes])
        look.check_restores_from(*(each.full for each in outcomes))
    assert shared == [[False, False], [True, True], [True, True], [False, False]]
    assert look.statuses() == ["up to date", "up to date"]
    with Local(staged, **SHARE) as local:
        local.await_live(0, 1)
        staged.feed(300)
        staged.await_all()
    staged.verify()
