"""Backup and restore on real brokers: a second, fresh cluster continues as an unbroken run would have."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support.apps.tally import Event, Line, Total, tally
from tests.support.local_service import Local
from tests.support.stage import Stage
from tests.support.verify import Row, read_all

from statehold.admin.backup.backup import backup
from statehold.admin.backup.restore import Restoration, restore
from statehold.dev import Cluster
from statehold.errors import ToolRefused, UsageError
from statehold.snapshot.backup import archive
from statehold.snapshot.backup.archive import BackupManifest
from statehold.snapshot.format import records
from statehold.snapshot.format.records import CommitRecord, StateReplacement
from statehold.snapshot.state_replacement import ReplacementReason
from statehold.state.digest import show
from statehold.testing import Driver

pytestmark = pytest.mark.kafka

REASON = ReplacementReason(tool="test", who="ann", why="the cluster burnt down")
#: records that are gone from the head of partition 0's input: its offsets move by this number
GONE = 100


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """Another cluster, which has seen nothing."""
    with Cluster() as cluster:
        yield cluster.bootstrap_servers


Saved = tuple[Stage, dict[int, list[Row]], BackupManifest, Path]


@pytest.fixture(scope="module")
def saved(broker: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    """A stopped service with 400 records that it has not handled; its input as it was; the backup."""
    directory = tmp_path_factory.mktemp("backup")
    (directory / "stage").mkdir()
    stage = Stage(broker.bootstrap_servers, directory / "stage", 2).create_topics()
    stage.feed(2000, keys=200)
    with Local(stage, STATEHOLD_COMMIT__MAX_RECORDS="50"):
        stage.await_all()
    stage.feed(400, keys=200)
    rows = read_all(stage.servers, stage.names.input)
    stage.delete_records(stage.names.input, 0, GONE)
    made = backup(stage.settings(), stage.names, [stage.output], directory / "files", with_input=True)
    yield stage, rows, made, directory / "files"
    stage.close()


def put_back(stage: Stage, source: Path, **options: object) -> Restoration:
    handler = tally(stage.output)
    return restore(stage.settings(), stage.names, handler, [stage.output], source, REASON, **options)  # type: ignore[arg-type]


def unbroken(rows: dict[int, list[Row]], cuts: dict[int, int], shift: dict[int, int]) -> dict[str, list[Line]]:
    """What the handler answers from the cut on, recomputed from the first record of all."""
    lines: dict[str, list[Line]] = defaultdict(list)
    for partition, each in rows.items():
        totals: dict[str, Total] = defaultdict(Total)
        for row in each:
            event = msgspec.json.decode(row.value, type=Event)
            old = totals[row.key]
            now = totals[row.key] = Total(old.count + 1, old.sum + event.amount)
            if row.offset >= cuts[partition]:
                lines[row.key].append(Line(partition, row.offset - shift[partition], event.id, now.count, now.sum))
    return lines


def said(stage: Stage) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = defaultdict(list)
    for each in read_all(stage.servers, stage.output).values():
        for row in each:
            found[row.key].append(msgspec.json.decode(row.value, type=Line))
    return found


def test_a_fresh_cluster_continues_as_an_unbroken_run(saved: Saved, elsewhere: str, tmp_path: Path) -> None:
    old, rows, made, source = saved
    (tmp_path / "new").mkdir()
    stage = Stage(elsewhere, tmp_path / "new", 2, of=old)

    shown = put_back(stage, source, dry_run=True)
    assert not {stage.names.input, stage.names.changelog, stage.names.snapshot, stage.output} & set(stage.topics())
    done = put_back(stage, source)

    assert [(each.old_position, each.keys, each.digest) for each in shown.partitions] == [
        (each.old_position, each.keys, each.digest) for each in done.partitions
    ]
    shift = {0: GONE, 1: 0}
    cuts = {each.partition: each.old_position for each in done.partitions}
    assert cuts == {each.partition: each.position for each in made.partitions}
    assert all(cuts[p] < len(rows[p]) for p in rows), "the test is about a tail that was not handled"
    assert {each.partition: each.position for each in done.partitions} == {p: cuts[p] - shift[p] for p in cuts}
    restored = read_all(elsewhere, stage.names.input)
    for p, each in rows.items():
        kept = [row for row in each if row.offset >= shift[p]]
        assert [(row.key, row.value) for row in restored[p]] == [(row.key, row.value) for row in kept]
    (replacement,) = [
        record
        for row in read_all(elsewhere, stage.names.changelog)[0]
        if isinstance(record := records.unpack(row.value), StateReplacement)
    ]
    assert (replacement.n, replacement.lineage, replacement.who, replacement.why) == (
        0,
        done.lineage,
        REASON.who,
        REASON.why,
    )
    assert (replacement.old_positions[stage.names.input], replacement.positions[stage.names.input]) == (
        cuts[0],
        cuts[0] - GONE,
    )
    assert replacement.notes["backup"] == made.backup
    offsets = msgspec.json.decode(Path(done.offsets).read_bytes())
    assert offsets[0]["segments"] == [[GONE, 0, len(rows[0]) - GONE]]

    with Local(stage) as local:
        local.await_live(0, 1)
        with pytest.raises(ToolRefused, match=r"has 1 member\(s\)"):
            put_back(stage, source, accept_duplicates=True)
        for p, each in rows.items():
            stage.await_partition(p, len(each) - shift[p])
        assert not local.failures(0)
        assert not local.failures(1)
    assert said(stage) == unbroken(rows, cuts, shift)
    with pytest.raises(ToolRefused, match=r"already holds records.*--accept-duplicates"):
        put_back(stage, source)
    for dry_run in (True, False):
        with pytest.raises(ToolRefused, match=r"never held a record: .*changelog\[0\] ends at"):
            put_back(stage, source, accept_duplicates=True, dry_run=dry_run)


def test_back_to_an_earlier_position_in_an_input_that_is_there(saved: Saved, tmp_path: Path) -> None:
    old, rows, _, source = saved
    (tmp_path / "beside").mkdir()
    stage = Stage(old.servers, tmp_path / "beside", 2, namespace="rewound.", of=old)
    wanted = {p: len(each) // 2 for p, each in rows.items()}

    shown = put_back(stage, source, cut=wanted, input_at="same", dry_run=True)
    done = put_back(stage, source, cut=wanted, input_at="same")
    assert (shown.partitions, shown.lineage) == (done.partitions, "")

    cuts = {each.partition: sum(each.positions.values()) for each in done.partitions}
    assert all(wanted[p] - 100 < cuts[p] <= wanted[p] for p in wanted), "rounded down to a mark"
    assert done.offsets == ""
    with Local(stage) as local:
        local.await_live(0, 1)
        for p, each in rows.items():
            stage.await_partition(p, len(each))
    assert said(stage) == unbroken(rows, cuts, {0: 0, 1: 0})
    state = {p: dict(stage.snapshots.restored(p).state.tables["totals"].items()) for p in rows}
    assert sum(map(len, state.values())) == len({row.key for each in rows.values() for row in each})


def test_an_impossible_restore_is_rejected(saved: Saved, tmp_path: Path) -> None:
    old, _, _, source = saved
    (tmp_path / "none").mkdir()
    stage = Stage(old.servers, tmp_path / "none", 2, namespace="refused.", of=old)
    source = Path(shutil.copytree(source, tmp_path / "copy"))
    with pytest.raises(UsageError, match="is not empty"):
        backup(old.settings(), old.names, [], source)
    without = tmp_path / "without"
    backup(old.settings(), old.names, [], without)
    with pytest.raises(UsageError, match="made without --with-input"):
        put_back(stage, without)
    with pytest.raises(ToolRefused, match="holds offsets 100 to"):
        put_back(stage, without, input_at="7")
    file = source / archive.read_manifest(source).files[0].name
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(UsageError, match=r"increment-0\.jsonl differs from the manifest"):
        put_back(stage, source)
    (source / archive.MANIFEST).unlink()
    with pytest.raises(UsageError, match="is not a complete backup"):
        put_back(stage, source)


def taken_in(stage: Stage, partition: int) -> list[tuple[int, CommitRecord]]:
    """The marks of a partition with the time at which Kafka took each in, by a consumer of its own."""
    consumer = Consumer({"bootstrap.servers": stage.servers, "group.id": "looking", "enable.partition.eof": True})
    consumer.assign([TopicPartition(stage.names.changelog, partition, 0)])
    found: list[tuple[int, CommitRecord]] = []
    try:
        while True:
            for message in consumer.consume(500, 1.0):
                if message.error() is not None:
                    return found
                record = records.unpack(message.value())
                if isinstance(record, CommitRecord):
                    found.append((message.timestamp()[1], record))
    finally:
        consumer.close()


def iso(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1000, UTC).isoformat()


def test_each_partition_continues_at_the_given_position(saved: Saved, tmp_path: Path) -> None:
    """By time, back to a state and on in the input; at the beginning, at an offset, at the end."""
    old, rows, _, source = saved
    times = {p: taken_in(old, p) for p in rows}
    moment = times[0][len(times[0]) // 2][0]
    wanted = {p: [commit_record for at, commit_record in times[p] if at <= moment][-1] for p in rows}
    ends = {p: rows[p][-1].offset + 1 for p in rows}

    def stage(name: str) -> Stage:
        (tmp_path / name).mkdir()
        return Stage(old.servers, tmp_path / name, 2, namespace=f"{name}.", of=old)

    by_time = stage("time")
    with pytest.raises(UsageError, match=r"partition 0: find the state at 1999-.*: the first commit record is of 20"):
        put_back(by_time, source, at_time="1999-01-01T00:00:00Z", input_at="same")
    with pytest.raises(UsageError, match="exclude each other"):
        put_back(by_time, source, at_time=iso(moment), cut=3, input_at="same")
    done = put_back(by_time, source, at_time=iso(moment), input_at="0=2100-01-01T00:00:00Z,1=beginning")
    assert {p.partition: p.old_position for p in done.partitions} == {
        p: commit_record.positions[old.names.input] for p, commit_record in wanted.items()
    }
    assert {p.partition: p.position for p in done.partitions} == {0: ends[0], 1: 0}
    assert {p.partition: p.digest for p in done.partitions} == {
        p: show(commit_record.digest) for p, commit_record in wanted.items()
    }

    by_offset = stage("offset")
    with pytest.raises(UsageError, match="name each of the partitions 0 to 1"):
        put_back(by_offset, source, input_at="0=120")
    with pytest.raises(UsageError, match="--input-at 'tomorrow': an offset"):
        put_back(by_offset, source, input_at="tomorrow")
    done = put_back(by_offset, source, cut={1: 300}, input_at="0=beginning,1=250")
    assert {p.partition: p.position for p in done.partitions} == {0: GONE, 1: 250}
    cuts = {p.partition: p.old_position for p in done.partitions}
    assert (250 < cuts[1] <= 300, cuts[0]) == (True, saved[2].partitions[0].position)
    with Local(by_offset) as local:
        local.await_live(0, 1)
        for p in rows:
            by_offset.await_partition(p, ends[p])
    again = [line for lines in said(by_offset).values() for line in lines if line.partition == 1]
    assert sorted(line.offset for line in again) == list(range(250, ends[1])), "what stood after the cut comes again"


@pytest.mark.parametrize("at", ["latest", "n:3"])
def test_a_driver_handles_the_input_of_a_backup_again(saved: Saved, at: str) -> None:
    stage, rows, _, source = saved
    driver = Driver(tally(stage.output), partitions=2)
    for partition, each in rows.items():
        position = driver.load(source, at, partition)
        assert driver.position(partition) == position
        assert driver.feed_backup(source, partition=partition) == sum(row.offset >= position for row in each)
        expected: dict[str, Total] = defaultdict(Total)
        for row in each:
            event, before = msgspec.json.decode(row.value, type=Event), expected[row.key]
            expected[row.key] = Total(before.count + 1, before.sum + event.amount)
        assert driver.table("totals", partition) == expected
        driver.replay(partition=partition)
