"""`holdfast compact` on a real broker with a real Spark: what it publishes, what it refuses, what it deletes."""

from __future__ import annotations

import pytest
from tests.spark.looking import Looking
from tests.system.stage import Stage

from holdfast.snapshot.spark.source import Session


@pytest.fixture
def look(spark: Session, staged: Stage) -> Looking:
    return Looking(spark, staged)


def test_increments_only_then_up_to_date_then_a_restore_takes_it(look: Looking) -> None:
    look.feed(3000)
    outcomes = look.compact()
    assert [each.status for each in outcomes] == ["compacted", "compacted"], outcomes
    assert all(each.proven and each.bytes_after for each in outcomes)
    assert [each.status for each in look.compact()] == ["up to date", "up to date"]
    look.check_restores_from_compaction()
