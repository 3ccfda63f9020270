"""A segment file that is damaged on a broker's disk: every tool names the place, or takes an older full snapshot."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.compactions import NO_SNAPSHOTS, Looking
from tests.support.local_service import Local
from tests.support.stage import Stage
from tests.support.verify import read_all

from statehold.admin.executor_clients import ReaderFactory
from statehold.admin.inspection.topic_view import TopicView, topic_view
from statehold.dev import Cluster
from statehold.errors import DamagedIncrement
from statehold.snapshot.format import records
from statehold.snapshot.format.records import Manifest
from statehold.snapshot.inspect.survey import survey
from statehold.snapshot.inspect.verify import verify
from statehold.snapshot.spark.io.source import Session

DAMAGED = "a record batch is damaged on the broker's disk"


def damage(broker: Cluster, topic: str, partition: int, offset: int) -> int:
    """Change one byte of the record batch with this offset in the segment file; return the batch's first offset."""
    (segment,) = Path(broker.directory).rglob(f"{topic}-{partition}/00000000000000000000.log")
    data, at = segment.read_bytes(), 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        if base <= offset <= base + struct.unpack_from(">i", data, at + 23)[0]:
            with segment.open("r+b") as file:
                file.seek(at + 12 + length - 3)
                file.write(bytes([data[at + 12 + length - 3] ^ 0x55]))
            return int(base)
        at += 12 + length
    raise AssertionError(f"{segment}: no batch with offset {offset}")


@pytest.fixture
def look(spark: Session, staged: Stage) -> Looking:
    """Two full snapshots, the older one at offset 1, and deltas after them."""
    for _ in range(2):
        with Local(staged):
            staged.feed(600, keys=200)
            staged.await_all()
    look = Looking(spark, staged)
    look.feed(300, keys=200)
    return look


@pytest.fixture
def view(staged: Stage) -> Iterator[TopicView]:
    with topic_view(staged.settings(), staged.names) as opened:
        yield opened


def manifests(stage: Stage, partition: int) -> list[tuple[int, Manifest]]:
    found = [
        (row.offset, records.unpack(row.value)) for row in read_all(stage.servers, stage.names.snapshot)[partition]
    ]
    return [(offset, record) for offset, record in found if isinstance(record, Manifest)]


def exported(look: Looking, view: TopicView, to: Path) -> dict[int, str]:
    from statehold.snapshot.spark.export.export import export

    spark: Any = look.spark
    done = export(
        spark, ReaderFactory(look.settings(), look.stage.names), view.reader, view.places(None), {}, [], to, "jsonl"
    )
    return {each.partition: each.digest for each in done.partitions}


@pytest.mark.long
def test_a_damaged_full_snapshot_is_named_and_an_older_one_used(
    look: Looking, view: TopicView, spark_broker: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stage, (place, _) = look.stage, view.places(None)
    (older, _), (newest, manifest) = manifests(stage, 0)
    at = damage(spark_broker, stage.names.snapshot, 0, manifest.low)
    where = f"{stage.names.snapshot}[0]@{at}"

    assert [full.offset for full in survey(view.reader, place).full_snapshots] == [newest, older]
    verdict = verify(view.reader, place)
    (finding,) = [each for each in verdict.findings if each.fault]
    assert (finding.topic, finding.offset) == (stage.names.snapshot, at)
    assert finding.text.startswith(f"in the full snapshot at {newest}: {DAMAGED}")
    assert "Next: " in finding.text
    assert {full.offset: full.good for full in verdict.full_snapshots} == {older: True, newest: False}

    digests = exported(look, view, tmp_path / "exported")
    assert digests[0] == survey_digest(view, 0)
    with Local(stage, **NO_SNAPSHOTS) as local:
        local.await_live(0, 1)
        restored = {event["partition"]: event["full"] for event in local.events("restored")}
        (unusable,) = local.events("full_unusable")
    assert restored[0] == older
    assert (unusable["full"], where in unusable["finding"]) == (newest, True)

    assert look.statuses() == ["compacted", "compacted"]
    look.check_restores_from_compaction()
    assert "\tat " not in capfd.readouterr().err, "Java's stack is not shown"


def survey_digest(view: TopicView, partition: int) -> str:
    return verify(view.reader, view.places([partition])[0]).digest


def test_a_damaged_changelog_is_named_and_other_partitions_are_compacted(
    look: Looking, view: TopicView, spark_broker: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stage, (place, other) = look.stage, view.places(None)
    _, (_, manifest) = manifests(stage, 0)
    at = damage(spark_broker, stage.names.changelog, 0, manifest.increment + 1)
    where = f"{stage.names.changelog}[0]@{at}: {DAMAGED}"

    assert survey(view.reader, place).commit_record is not None, "the last commit record is readable"
    (finding,) = [each for each in verify(view.reader, place).findings if each.fault]
    assert (finding.topic, finding.offset) == (stage.names.changelog, at)
    assert verify(view.reader, other).good

    failed, compacted = look.compact()
    assert (failed.status, compacted.status) == ("failed", "compacted")
    assert failed.cause.startswith(where)
    assert "Next: " in failed.cause
    with pytest.raises(Exception, match="damaged on the broker's disk") as export_failed:
        exported(look, view, tmp_path / "exported")
    assert str(export_failed.value).startswith(where)
    assert "\n" not in str(export_failed.value)
    with Local(stage, **NO_SNAPSHOTS) as local:
        local.await_live(1)
        assert local.await_failed(0, DamagedIncrement).startswith(where)
    assert "\tat " not in capfd.readouterr().err, "Java's stack is not shown"


@pytest.mark.long
def test_damage_before_the_full_snapshot_keeps_nothing_from_a_restore(
    look: Looking, view: TopicView, spark_broker: Cluster
) -> None:
    stage, (place, _) = look.stage, view.places(None)
    _, (newest, manifest) = manifests(stage, 0)
    at = damage(spark_broker, stage.names.changelog, 0, manifest.increment - 3)

    (finding,) = [each for each in verify(view.reader, place).findings if each.fault]
    assert (finding.topic, finding.offset) == (stage.names.changelog, at)
    with Local(stage, **NO_SNAPSHOTS) as local:
        local.await_live(0, 1)
        assert {event["full"] for event in local.events("restored") if event["partition"] == 0} == {newest}


@pytest.mark.long
def test_an_export_that_a_truncation_overtakes_reads_again(
    look: Looking,
    view: TopicView,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Between its plan and its read the service writes a new full snapshot and deletes what the plan needs."""
    from statehold.snapshot.spark.export import export as module

    planned, plan, stage = [], module.plan, look.stage

    def overtaken(*arguments: Any) -> Any:
        plans = plan(*arguments)
        planned.append({each.partition: each.start for each in plans})
        if len(planned) == 1:
            with Local(stage, STATEHOLD_SNAPSHOT__KEEP="1") as local:
                stage.feed(300, keys=200)
                stage.await_all()
                service = local
            assert {event["partition"] for event in service.events("truncated")} == {0, 1}
        return plans

    monkeypatch.setattr(module, "plan", overtaken)
    digests = exported(look, view, tmp_path / "exported")

    assert len(planned) == 2
    assert digests == {partition: survey_digest(view, partition) for partition in (0, 1)}
    assert "\tat " not in capfd.readouterr().err, "Java's stack is not shown"
