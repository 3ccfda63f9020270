"""`state migrate` by Spark gives, byte for byte, what the same edit gives in one process."""

from __future__ import annotations

import pytest
from tests.support.apps.tally import Tally, Total
from tests.support.local_service import Local
from tests.support.stage import Stage
from tests.support.verify import digest_of, fold, read_all

from statehold.admin.state import migrate_spark
from statehold.admin.state.migrate import migrate
from statehold.errors import KafkaTrouble
from statehold.snapshot.spark.io.source import Session
from statehold.snapshot.state_edits import Patch
from statehold.snapshot.state_replacement import ReplacementReason

REASON = ReplacementReason(tool="test", who="ann", why="ticket 7")


def halve(key: str, old: Total) -> Total | None:
    return None if key.endswith("7") else Total(old.count, old.sum // 2)


def broken(key: str, old: Total) -> Total:
    raise ValueError(key)


PATCHES = [
    Patch("totals", "key-8", {"count": 1, "sum": 2}),
    Patch("totals", "key-18", None),
    Patch("totals", "new", {"count": 5, "sum": 5}, 1),
]


@pytest.mark.long
def test_a_dry_run_reports_the_same_and_a_function_that_raises_is_named(spark: Session, staged: Stage) -> None:
    stage = staged
    stage.feed(1000, keys=100)
    with Local(stage):
        stage.await_all()
    what = stage.settings(), stage.names, Tally
    patches = [Patch("totals", "new", {"count": 5, "sum": 5}, 1)]
    plain = migrate(*what, {"totals": halve}, patches, REASON, dry_run=True)
    assert migrate_spark.migrate(spark, *what, {"totals": halve}, patches, REASON, dry_run=True) == plain
    with pytest.raises(KafkaTrouble, match="broken raised ValueError"):
        migrate_spark.migrate(spark, *what, {"totals": broken}, [], REASON, dry_run=True)


def test_the_same_edit_by_spark(spark: Session, staged: Stage) -> None:
    stage, functions = staged, {"totals": halve}
    stage.feed(3000, keys=400)
    with Local(stage):
        stage.await_all()
    before = fold(read_all(stage.servers, stage.names.input)).totals
    arguments = (stage.settings(), stage.names, Tally, functions, PATCHES, REASON)
    plain = migrate(*arguments, dry_run=True)
    done = migrate_spark.migrate(spark, *arguments)
    wanted = {p: {k: Total(t.count, t.sum // 2) for k, t in each.items() if k[-1] != "7"} for p, each in before.items()}
    for each in wanted.values():
        each.pop("key-18", None)
        if "key-8" in each:
            each["key-8"] = Total(1, 2)
    wanted[1]["new"] = Total(5, 5)
    for partition, reported in enumerate(done.partitions):
        restored = stage.snapshots.restored(partition)
        assert dict(restored.state.tables["totals"].items()) == wanted[partition]
        assert restored.commit_record.lineage == done.lineage
        assert reported.digest == digest_of(wanted[partition]) == plain.partitions[partition].digest
        assert reported.counts == plain.partitions[partition].counts
    with Local(stage) as local:
        local.await_live(0, 1)
        stage.feed(200, keys=400)
        stage.await_all()
        assert not local.events("full_unusable", "offset_behind")
