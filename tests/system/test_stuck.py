"""Handlers that are slow, or never return: the group is not disturbed, and the log says so (F19, F20, F21)."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec
from tests.support.apps.tally import HOLD
from tests.support.local_service import Local
from tests.support.processes import LogEvent, Process, await_true
from tests.support.stage import Stage, StageFactory
from tests.support.verify import read_all

from statehold.common.exit_codes import Exit

pytestmark = pytest.mark.kafka

#: the shortest that the settings allow
IMPATIENT = {"STATEHOLD_GROUP__MAX_POLL_INTERVAL": "10", "STATEHOLD_FAILURE__HANDLER_SLOW": "0.5"}


def send_hold(stage: Stage, partition: int = 0) -> None:
    """An event that the handler stays in while `stage.hold` exists."""
    send(stage, partition, HOLD)


def send(stage: Stage, partition: int, amount: int = 1) -> None:
    stage.send(b'{"id":0,"amount":%d}' % amount, partition, f"own-{partition}")


def await_held(local: Local) -> dict[str, Any]:
    await_true(lambda: local.events("handler_slow"), "the handler is slow")
    return dict(local.events("handler_slow")[0])


def test_a_record_that_takes_longer_than_max_poll_interval_costs_no_membership(two_partitions: Stage) -> None:
    stage = two_partitions
    stage.hold.touch()
    with Local(stage, **IMPATIENT) as local:
        local.await_live(0, 1)
        send_hold(stage)
        reported = await_held(local)
        assert reported["doing"] == f"on_record of {stage.names.input}[0]@0"
        assert "in stay" in reported["stack"]  # the innermost function of the handler
        member = stage.group.members()[0].member_id
        over = time.monotonic() + local.service.settings.group.max_poll_interval
        # For longer than the group would wait for a process that does not poll, the neighbour continues.
        at = 0
        while time.monotonic() < over:
            at += 1
            send(stage, 1)
            stage.await_partition(1, at)
        assert [each.member_id for each in stage.group.members()] == [member]
        assert not local.events("lost", "revoked", "failed", "handler_stuck")
        assert len(local.events("handler_slow")) == 1
        stage.hold.unlink()
        stage.count(1 + at).await_all()
    stage.verify()


def test_a_handler_that_never_comes_back_fails_its_partition_then_ends_the_process(stages: StageFactory) -> None:
    stage = stages(2).create_topics()
    stage.hold.touch()
    limits = {"STATEHOLD_FAILURE__HANDLER_SLOW": "0.5", "STATEHOLD_FAILURE__HANDLER_STUCK": "1"}
    process = stage.process("stuck", PROBE_CLI="1", STATEHOLD_FAILURE__STUCK_EXIT="8", **limits).await_live(0, 1)
    send_hold(stage)
    reported = process.await_event("handler_stuck")
    assert "in stay" in reported["stack"]
    assert f"{stage.names.input}[0]@0: the handler has been in on_record" in reported["cause"]
    # The other partition works on while the process waits.
    send(stage, 1)
    stage.await_partition(1, 1)
    await_true(lambda: process.exit_code is not None, "the process ends")
    assert process.exit_code == Exit.HANDLER_STUCK, process.tail()
    assert not stage.group.members(), "it has left the group before it ended"
    assert "HandlerStuck" in process.events("stopped")[-1]["error"]
    stage.hold.unlink()
    stage.process("heir").await_live(0, 1)
    stage.await_partition(0, 1)
    stage.count(2)
    stage.verify()


def test_no_partition_waits_for_a_stuck_handler(two_partitions: Stage) -> None:
    """Neither a stop nor a revocation: the time that they may take would last longer than this test."""
    stage = two_partitions
    stage.hold.touch()
    limits = {
        "STATEHOLD_FAILURE__HANDLER_STUCK": "0.5",
        "STATEHOLD_FAILURE__STUCK_EXIT": "off",
        "STATEHOLD_GROUP__MAX_POLL_INTERVAL": "3000",
        "STATEHOLD_GROUP__DRAIN_BUDGET": "1000",
        "STATEHOLD_SERVICE__STOP_TIMEOUT": "1000",
    }
    with Local(stage, **limits) as local:
        local.await_live(0, 1)
        for partition in (0, 1):
            send_hold(stage, partition)
            local.await_phase(partition, "failed")
        causes = [status["cause"] for status in local.partitions().values()]
        assert all("failure.handler_stuck" in cause for cause in causes)
        guest = stage.process("guest", STATEHOLD_FAILURE__HANDLER_STUCK="off")
        guest.await_event("live")  # it was given one of the two
        local.service.stop()
        assert guest.await_event("live", 2), "after the stop it has both"
        stage.hold.unlink()
        stage.count(2).await_all()
        # The threads that were left behind come back now, and throw away what they did.
        await_true(lambda: len(local.events("partition_closed")) == 2, "the old threads end")
        assert not local.events("thread_died", "drained")
    stage.verify()


def test_a_batch_of_slow_records_commits_in_time_and_a_stop_keeps_the_handled_ones(stages: StageFactory) -> None:
    stage = stages(2).create_topics()
    own = {"PROBE_CALLS": str(stage.calls), "PROBE_SLOW": "0.05"}
    stage.feed(3000)  # a minute and more for each partition, in batches of up to a thousand
    process = stage.process("slow", **own)
    for partition in (0, 1):
        stage.await_partition(partition, 3)
    assert process.stop() == 0
    assert stage.position() < 2000, "the batches were not handled to their ends"
    assert {event["event"] for event in process.events("drained", "aborted")} == {"drained"}
    assert handled(stage.calls) == stage.group.positions(stage.names.input)
    del own["PROBE_SLOW"]
    stage.process("fast", **own).await_live(0, 1)
    stage.await_all()
    stage.verify()


def handled(calls: Path) -> dict[int, int]:
    """The position of each partition after all calls that are written down; each record was handled once."""
    seen: dict[int, list[int]] = defaultdict(list)
    for line in calls.read_text().splitlines():
        what, partition, *more = line.split()
        if what == "call":
            seen[int(partition)].append(int(more[0]))
    for offsets in seen.values():
        assert offsets == list(range(len(offsets)))
    return {partition: len(offsets) for partition, offsets in seen.items()}


def test_a_transaction_that_the_broker_has_timed_out_is_handled_again_without_a_fence_loop(
    two_partitions: Stage,
) -> None:
    stage = two_partitions
    times = {
        "STATEHOLD_COMMIT__TRANSACTION_TIMEOUT": "9",
        "STATEHOLD_COMMIT__TIMEOUT": "3.5",
        "STATEHOLD_COMMIT__INTERVAL": "3",
        "STATEHOLD_KAFKA__SOCKET_TIMEOUT": "3",
        "STATEHOLD_FAILURE__FENCE_LIMIT": "1",
        "STATEHOLD_FAILURE__HANDLER_SLOW": "10",
    }
    with Local(stage, **times) as local:
        local.await_live(0, 1)
        sent = 0
        for partition in (0, 1):
            stage.hold.touch()
            send(stage, partition)
            await_true(lambda: not no_transaction_is_open(stage), "a transaction is open")
            send_hold(stage, partition)
            sent += 2
            await_true(lambda: no_transaction_is_open(stage), "the broker ends the transaction")
            stage.hold.unlink()
            stage.await_partition(partition, 2)
            if timed_out(local):
                break  # on a busy machine a commit may come between the two records: then the other partition
        replaced, slow = len(timed_out(local)), len(local.events("handler_slow"))
        assert replaced
        # Records as slow as that one from now on: no transaction is open while they are handled.
        stage.hold.touch()
        for _ in range(3):
            send(stage, partition)
            send_hold(stage, partition)
        await_true(lambda: len(local.events("handler_slow")) > slow, "the handler is slow again")
        stage.hold.unlink()
        stage.await_partition(partition, 8)
        assert len(timed_out(local)) == replaced
        assert not local.events("fenced_by_new_owner", "failed", "retrying")
        assert len(local.events("restoring")) == 2, "memory was kept"
        stage.count(sent + 6).await_all()
    stage.verify()


def timed_out(local: Local) -> list[Any]:
    return [event for event in local.events("producer_replaced") if "commit.transaction_timeout" in event["cause"]]


def written(stage: Stage, isolation: Any) -> int:
    """The sum of the output's ends."""
    count = len(read_all(stage.servers, stage.output))
    places = [TopicPartition(stage.output, partition) for partition in range(count)]
    spec: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    found = stage.admin.list_offsets(dict.fromkeys(places, spec), isolation_level=isolation)
    return sum(future.result(30).offset for future in found.values())


def no_transaction_is_open(stage: Stage) -> bool:
    return written(stage, IsolationLevel.READ_COMMITTED) == written(stage, IsolationLevel.READ_UNCOMMITTED)


@pytest.mark.long
@pytest.mark.parametrize("protocol", [{}, {"STATEHOLD_GROUP__PROTOCOL": "consumer"}], ids=["classic", "consumer"])
def test_a_process_whose_interpreter_hangs_commits_nothing_late(stages: StageFactory, protocol: dict[str, str]) -> None:
    """A call in C keeps the interpreter for 20 s: no poll, no callback, no clock, while a peer joins (F20)."""
    stage = stages(4).create_topics()
    stage.hold.write_text("20")
    slow = {"STATEHOLD_GROUP__MAX_POLL_INTERVAL": "10", "STATEHOLD_COMMIT__INTERVAL": "1"}
    hog = stage.process("hog", **slow, **protocol).await_live(0, 1, 2, 3)
    stage.feed(4000)
    send_hold(stage)
    await_true(lambda: not stage.hold.exists(), "the interpreter stands still")
    peer = stage.process("peer", **slow, **protocol)
    with stage.load(300):
        peer.await_live(0, 1, 2, 3, seconds=120)
        hog.await_that(
            lambda: hog.events("lost", "revoked", "fenced_by_new_owner"), "it hears of what it has missed", 120
        )
        await_true(lambda: {*hog.live(), *peer.live()} == {0, 1, 2, 3}, "all are handled")
        stage.await_progress()
    assert not early_fences(hog), "it has fenced its successor before it heard of it"
    stage.count(1).await_all()
    assert not hog.events("thread_died") + peer.events("thread_died", "failed")
    stage.verify()


def early_fences(process: Process) -> list[LogEvent]:
    """Fences of partitions that the group had not given to it again, after it had heard of none or lost them."""
    owned: set[int] = set()
    found = []
    for event in process.events("assigned", "revoked", "lost", "predecessor_fenced"):
        if event["event"] == "assigned":
            owned.update(event["partitions"])
        elif event["event"] == "predecessor_fenced":
            found += [event] if event["partition"] not in owned else []
            owned.discard(event["partition"])  # once for each assignment
        else:
            owned.difference_update(event["partitions"])
    return found
