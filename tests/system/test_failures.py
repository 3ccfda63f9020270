"""One partition fails, the others stay live (requirements 4.5, 4.10; retention gaps)."""

from __future__ import annotations

import signal
import time

import pytest
from tests.support.apps.tally import POISON
from tests.support.local_service import Local
from tests.support.processes import Process
from tests.support.stage import Stage, StageFactory
from tests.support.verify import read_all

from statehold.errors import HandlerFailed, RetentionGap, UndecodableRecord

pytestmark = pytest.mark.kafka


def test_one_poison_record_leaves_seven_of_eight_partitions_live(stages: StageFactory) -> None:
    outlast_poison(stages(8).create_topics(), 8)


@pytest.mark.long
def test_one_poison_record_leaves_seven_of_eight_partitions_live_for_five_minutes(stages: StageFactory) -> None:
    outlast_poison(stages(8).create_topics(), 300)


def outlast_poison(stage: Stage, seconds: float) -> None:
    poisoned, others = 3, set(range(8)) - {3}
    trio = [stage.process(name) for name in ("a", "b", "c")]
    trio[0].await_that(lambda: shared(trio, range(8)), "eight live partitions, shared by all three")
    stage.poison.touch()
    with stage.load(500):
        trio[0].await_that(lambda: stage.group.positions(stage.names.input)[poisoned] > 100, "load")
        stage.send(b'{"id":-1,"amount":%d}' % POISON, poisoned)
        trio[0].await_that(lambda: failed(trio) == [poisoned], "the failure")
        at = stage.group.positions(stage.names.input)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert failed(trio) == [poisoned], "the poison walks from instance to instance"
            time.sleep(0.2)  # how often it is looked at
        trio[0].await_that(lambda: live(trio) == others, "seven live partitions")
        trio[0].await_that(lambda: moved(stage, at) == others, "all but the poisoned have moved on")
    stage.poison.unlink()
    for process in trio:
        process.signal(signal.SIGUSR1)  # statehold retry
    trio[0].await_that(lambda: live(trio) == set(range(8)), "eight live partitions again")
    stage.count(1).await_all()
    stage.verify()


def shared(processes: list[Process], partitions: range) -> bool:
    fair = len(partitions) // len(processes)
    return live(processes) == set(partitions) and all(len(process.live()) >= fair for process in processes)


def moved(stage: Stage, since: dict[int, int]) -> set[int]:
    now = stage.group.positions(stage.names.input)
    return {partition for partition, position in since.items() if now[partition] > position}


def live(processes: list[Process]) -> set[int]:
    return set.union(*(process.live() for process in processes))


def failed(processes: list[Process]) -> list[int]:
    return [event["partition"] for process in processes for event in process.events("failed")]


def test_the_record_that_fails_leaves_no_trace_and_is_not_skipped(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.poison.touch()
    for value in (b'{"id":0,"amount":5}', b'{"id":1,"amount":%d}' % POISON, b'{"id":2,"amount":7}'):
        stage.send(value, 0)
    stage.send(b'{"id":3,"amount":9}', 1, "other")
    with Local(stage) as local:
        cause = local.await_failed(0, HandlerFailed)
        assert f"{stage.names.input}[0]@1" in cause
        assert "statehold retry 0" in cause
        local.await_live(1)
        stage.await_position(2)
        assert stage.group.positions(stage.names.input) == {0: 1, 1: 1}
        # What the failing record had put and sent is gone: one key, one line.
        state = stage.snapshots.restored(0).state.tables["totals"].stored
        assert len(state) == 1
        local.service.retry(0)
        assert "@1" in local.await_failed(0, HandlerFailed)
        stage.poison.unlink()
        local.service.retry(0)
        local.await_live(0, 1)
        stage.count(4).await_all()
    stage.verify()


def test_an_undecodable_record_stops_its_partition_at_its_offset(two_partitions: Stage) -> None:
    stage = two_partitions
    for value in (b'{"id":0,"amount":5}', b"\xff no JSON", b'{"id":1,"amount":5}'):
        stage.send(value, 0)
    with Local(stage) as local:
        cause = local.await_failed(0, UndecodableRecord)
        assert f"{stage.names.input}[0]@1" in cause
        stage.send(b'{"id":2,"amount":5}', 1)
        stage.await_position(2)
        assert stage.group.positions(stage.names.input) == {0: 1, 1: 1}
        assert local.phase(1) == "live"
    # The next owner finds it there, too.
    with Local(stage) as local:
        assert "@1" in local.await_failed(0, UndecodableRecord)


def test_a_retention_gap_found_by_the_restore(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.feed(100)
    with Local(stage):
        stage.await_all()
    stage.feed(100)
    cut = delete_beyond(stage, 0)
    with Local(stage) as local:
        cause = local.await_failed(0, RetentionGap)
        position = stage.group.positions(stage.names.input)[0]
        assert f"{stage.names.input}[0]@{position}" in cause
        assert str(cut) in cause
        local.await_live(1)
        end = stage.ends()[1]
        local.service.retry(0)
        stage.await_partition(1, end)
        local.await_failed(0, RetentionGap)
        assert stage.group.positions(stage.names.input)[0] == position


def test_a_retention_gap_found_while_live(two_partitions: Stage) -> None:
    stage = two_partitions
    process = stage.process("live").await_live(0, 1)
    process.signal(signal.SIGSTOP)  # for less than a session
    for number in range(20):  # more than one fetch may bring, so that the next one finds the gap
        stage.send(b'{"id":%d,"amount":1,"filler":"%s"}' % (number, b"x" * 200_000), 0)
    stage.send(b'{"id":20,"amount":1}', 1)
    stage.delete_records(stage.names.input, 0, 19)
    process.signal(signal.SIGCONT)
    failure = process.await_event("failed")
    assert (failure["error"], failure["partition"]) == ("RetentionGap", 0)
    stage.await_partition(1, 1)
    assert process.live() == {1}
    position = stage.group.positions(stage.names.input)[0]
    assert position < 19
    assert f"{stage.names.input}[0]@" in failure["cause"]
    lines = [row for rows in read_all(stage.servers, stage.output).values() for row in rows]
    assert len(lines) == position + 1, "something was skipped"


def delete_beyond(stage: Stage, partition: int) -> int:
    """Delete the input's records up to ten beyond the committed position."""
    cut = stage.group.positions(stage.names.input)[partition] + 10
    stage.delete_records(stage.names.input, partition, cut)
    return cut
