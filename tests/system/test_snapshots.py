"""Snapshots that are lost, half-written or absent, and states of unusual sizes: the same result (proofs 5.5, 5.7)."""

from __future__ import annotations

import signal
import time

import pytest
from tests.support.apps.tally import CLEAR
from tests.support.figures import Figure
from tests.support.local_service import Local
from tests.support.stage import Stage, StageFactory
from tests.support.verify import read_all

from statehold.errors import NoUsableFull
from statehold.snapshot.format import frame

pytestmark = pytest.mark.kafka

#: full snapshots in small chunks, one as soon as something was written
OFTEN = {
    "STATEHOLD_SNAPSHOT__FULL_INTERVAL": "1",
    "STATEHOLD_SNAPSHOT__CHUNK_BYTES": "4096",
    "STATEHOLD_SNAPSHOT__SLICE_BUDGET": "0.0005",
}
NEVER = {"STATEHOLD_SNAPSHOT__PERIODIC_FULL": "false", "STATEHOLD_SNAPSHOT__ON_STOP": "false"}


@pytest.fixture
def one_partition(stages: StageFactory) -> Stage:
    return stages(1).create_topics()


def test_without_a_full_snapshot_the_deltas_alone_bring_the_state_back(one_partition: Stage) -> None:
    stage = one_partition
    for _ in range(2):
        with Local(stage, **NEVER) as local:
            stage.feed(2000)
            stage.await_all()
            assert local.events("restored")[0]["full"] is None
    assert not read_all(stage.servers, stage.names.snapshot)[0]
    stage.verify()


@pytest.mark.long
def test_a_full_snapshot_that_a_crash_cut_off_between_its_chunks_is_passed_over(one_partition: Stage) -> None:
    stage = one_partition
    stage.feed(30_000, keys=1_000_000)
    process = stage.process("cut", **OFTEN).await_live(0)
    stage.await_all()
    process.await_event("full_started")
    process.signal(signal.SIGSTOP)
    while not kinds(stage):  # let it go on a little at a time
        process.signal(signal.SIGCONT)
        process.signal(signal.SIGSTOP)
    process.kill()
    assert set(kinds(stage)) == {b"C"}, "the full was complete before the kill"
    restarted_without_it(stage, None)


def test_a_full_snapshot_that_no_commit_record_refers_to_is_passed_over(one_partition: Stage) -> None:
    stage = one_partition
    stage.feed(1000)
    process = stage.process("early", **OFTEN).await_live(0)
    process.await_event("full_written")  # an idle partition refers to it 5 s later
    process.kill()
    assert kinds(stage)[-1] == b"F"
    assert stage.snapshots.restored(0).commit_record.full_snapshots == ()
    restarted_without_it(stage, None)


def test_a_lost_full_snapshot_is_passed_over_while_the_deltas_are_there(one_partition: Stage) -> None:
    stage = one_partition
    stage.feed(1000)
    with Local(stage):
        stage.await_all()
    assert stage.snapshots.restored(0).full is not None
    stage.delete_records(stage.names.snapshot, 0)
    restarted_without_it(stage, None)
    assert stage.processes["heir"].events("full_unusable")


def test_a_partition_is_never_live_when_its_only_base_is_lost(one_partition: Stage) -> None:
    stage = one_partition
    with Local(stage, STATEHOLD_SNAPSHOT__KEEP="1") as local:
        stage.feed(1000)
        stage.await_all()
    assert local.events("truncated")
    stage.delete_records(stage.names.snapshot, 0)
    with Local(stage) as local:
        said = local.await_failed(0, NoUsableFull)
    assert "its records are gone: the topic holds offsets" in said
    assert "without a full snapshot: the deltas begin with transaction" in said
    assert "`statehold snapshot restore`" in said
    assert sum(map(len, read_all(stage.servers, stage.output).values())) == 1000


def test_deltas_that_do_not_reach_back_are_left_aside_and_the_input_is_handled_again(one_partition: Stage) -> None:
    """The full snapshots are lost, and deltas began some time later: folding them would give another state."""
    stage = one_partition
    for mode in ("off", "commit"):
        with Local(stage, STATEHOLD_SNAPSHOT__DELTA_INTERVAL=mode):
            stage.feed(1000)
            stage.await_all()
    stage.delete_records(stage.names.snapshot, 0)
    with Local(stage) as local:
        local.await_live(0)
        (reported,) = local.events("replaying_far")
        assert (reported["full"], reported["position"]) == (None, 0)
        assert local.events("replayed")[0]["records"] == 2000
        stage.feed(1000)
        stage.await_all()
    stage.verify()


def restarted_without_it(stage: Stage, full: int | None) -> None:
    heir = stage.process("heir", **NEVER).await_live(0)
    assert heir.events("restored")[0]["full"] == full
    stage.feed(1000)
    stage.await_all()
    stage.verify()


def kinds(stage: Stage) -> list[bytes]:
    """The kind of each record on the snapshot topic: C is a chunk, F a manifest."""
    return [frame.kind_of(row.value) for row in read_all(stage.servers, stage.names.snapshot)[0]]


def test_a_delta_larger_than_a_message_goes_in_parts(stages: StageFactory) -> None:
    small = {
        "STATEHOLD_KAFKA__MESSAGE_MAX_BYTES": "20000",
        "STATEHOLD_SNAPSHOT__CHUNK_BYTES": "8192",
        "STATEHOLD_COMMIT__INTERVAL": "2",
    }
    stage = stages(1).create_topics(**small)
    with Local(stage, **small, **NEVER) as local:
        local.await_live(0)
        stage.feed(20_000, keys=100_000)
        stage.await_all()
    stage.snapshots.restored(0)
    commit_records = [
        row for row in read_all(stage.servers, stage.names.changelog)[0] if frame.kind_of(row.value) == b"P"
    ]
    assert len(commit_records) > 10
    assert max(len(row.value) for row in commit_records) < 20_000
    with Local(stage, **small):
        stage.feed(100)
        stage.await_all()
    stage.verify()


def test_an_empty_table_and_a_partition_without_input(two_partitions: Stage) -> None:
    stage = two_partitions
    for number, amount in enumerate((5, 7, CLEAR)):
        stage.send(b'{"id":%d,"amount":%d}' % (number, amount), 0)
    stage.count(3)
    with Local(stage):
        stage.await_all()
    with Local(stage) as local:
        local.await_live(0, 1)
    assert {event["partition"]: event["keys"] for event in local.events("restored")} == {0: 0, 1: 0}
    stage.verify()
    stage.send(b'{"id":3,"amount":5}', 1)
    with Local(stage):
        stage.count(1).await_all()
    stage.verify()


@pytest.mark.long
@pytest.mark.parametrize("partitions", [20, 100])
def test_many_partitions_in_one_process(stages: StageFactory, partitions: int) -> None:
    stage = stages(partitions).create_topics()
    stage.feed(10_000)
    process = stage.process("all").await_live(*range(partitions))
    stage.await_all()
    process.kill()
    stage.feed(10_000)
    process.start().await_live(*range(partitions))
    stage.await_all()
    assert process.stop() == 0
    assert len(process.events("drained")) == partitions
    stage.verify()


@pytest.mark.long
def test_a_full_snapshot_of_a_hundred_megabytes(stages: StageFactory, figure: Figure) -> None:
    stage = stages(1).create_topics()
    stage.feed(110_000, keys=10**9, padding=1000)
    process = stage.process("large").await_live(0)
    stage.await_all()
    assert process.stop() == 0
    written = process.events("full_written")[0]
    assert written["bytes"] > 100_000_000
    figure("full of 100 MB written", written["seconds"], "s")
    began = time.monotonic()
    heir = stage.process("heir").await_live(0)
    figure("full of 100 MB, from start to live", time.monotonic() - began, "s")
    assert heir.events("restored")[0]["full"] == written["full"]
    stage.verify()
