"""Static members: a restart moves nothing, leaving is explicit, a name has one process; idle members; patience."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from tests.support.local_service import Local
from tests.support.processes import Process, await_true
from tests.support.stage import KIP848, Stage, StageFactory

from statehold.errors import InstanceTaken

pytestmark = pytest.mark.kafka

#: the session of the consumer protocol is the broker's: 6 s in these tests
SESSION = 6.0
STATIC = {"STATEHOLD_GROUP__MEMBERSHIP": "static"}
#: longer than any test: what happens without waiting for it happens because a member has left
LONG = {"STATEHOLD_GROUP__SESSION_TIMEOUT": "200", "STATEHOLD_GROUP__MAX_POLL_INTERVAL": "300"}
PROTOCOLS = pytest.mark.parametrize("protocol", [LONG, KIP848], ids=["classic", "consumer"])


def named(stage: Stage, name: str, protocol: dict[str, str], **more: str) -> Local:
    return Local(stage, STATEHOLD_SERVICE__INSTANCE=name, **STATIC, **protocol, **more)


def await_half(process: Process, local: Local) -> None:
    await_true(lambda: len(process.live()) == 2 and len(live(local)) == 2, "two partitions each")


def live(local: Local) -> set[int]:
    return {partition for partition, status in local.partitions().items() if status["phase"] == "live"}


def disturbed(process: Process) -> list[dict[str, Any]]:
    """What moved here; the consumer protocol also reports assignments that change nothing."""
    return [event for event in process.events("assigned", "revoked", "lost") if event["partitions"]]


@PROTOCOLS
def test_a_restart_moves_nothing_and_leaving_gives_everything_away(stage: Stage, protocol: dict[str, str]) -> None:
    stays = stage.process("a", **STATIC, **protocol)
    with named(stage, "b", protocol) as first:
        await_half(stays, first)
        stage.feed(500)
        stage.await_all()
        kept = live(first)
    for _ in range(5):  # a machine that is too busy to restart within the session proves nothing: then once more
        before, stopped = len(disturbed(stays)), time.monotonic()
        instances = {member.group_instance_id for member in stage.group.members()}
        with named(stage, "b", protocol) as again:
            await_half(stays, again)
            if protocol is KIP848 and time.monotonic() - stopped > SESSION / 2:
                continue
            assert instances == {"a", "b"}, "it kept its place"
            assert live(again) == kept
            assert len(disturbed(stays)) == before
            again.service.drain()
            assert {member.group_instance_id for member in stage.group.members()} == {"a"}
            assert not again.events("kafka_retry")
        break
    else:
        pytest.skip("no restart within half a session in five tries")
    stays.await_live(0, 1, 2, 3)
    stage.feed(500)
    stage.await_all()
    stage.verify()


def test_a_name_is_taken_over_and_its_old_owner_ends(two_partitions: Stage) -> None:
    """The classic protocol lets the newcomer in: FENCED_INSTANCE_ID."""
    stage = two_partitions
    with named(stage, "twin", LONG) as old:
        old.await_live(0, 1)
        new = stage.process("twin", **STATIC, **LONG)
        with pytest.raises(InstanceTaken, match="FENCED_INSTANCE_ID: another process has joined the group as 'twin'"):
            old.service.wait(120)
        new.await_live(0, 1)
    stage.feed(200)
    stage.await_all()
    stage.verify()


def test_a_name_that_is_in_use_is_rejected_after_some_patience(two_partitions: Stage) -> None:
    """The consumer protocol keeps the newcomer out: UNRELEASED_INSTANCE_ID."""
    stage = two_partitions
    owner = stage.process("twin", **STATIC, **KIP848).await_live(0, 1)
    with named(stage, "twin", KIP848, STATEHOLD_GROUP__JOIN_PATIENCE="2") as second:
        with pytest.raises(InstanceTaken, match="UNRELEASED_INSTANCE_ID: the group has had a member called 'twin'"):
            second.service.wait(120)
        assert "UNRELEASED_INSTANCE_ID" in second.events("waiting")[0]["cause"]
    stage.feed(200)
    stage.await_all()
    assert owner.live() == {0, 1}
    stage.verify()


def test_members_without_partitions_take_over(stages: StageFactory) -> None:
    stage = stages(1).create_topics()
    with Local(stage, **KIP848) as active:
        active.await_live(0)
        with Local(stage, **KIP848) as standby:
            await_true(lambda: standby.events("idle_member"), "it knows that it is idle")
            status = standby.service.status()
            assert status["ready"]
            assert "the 1 partitions are assigned to" in status["waiting"]
            stage.feed(200)
            stage.await_all()
            active.service.stop()
            standby.await_live(0)
            assert standby.service.status()["waiting"] is None
            stage.feed(200)
            stage.await_all()
    stage.verify()


@pytest.mark.long
def test_a_member_that_waits_for_a_dead_one_says_so(stages: StageFactory) -> None:
    stage = stages(2).create_topics()
    slow = {"STATEHOLD_GROUP__SESSION_TIMEOUT": "30"}
    killed = stage.process("killed", **slow).await_live(0, 1)
    stage.feed(500)
    stage.await_all()
    killed.kill()
    with Local(stage, **slow) as heir:
        await_true(lambda: heir.events("waiting"), "it says why it waits")
        cause = heir.events("waiting")[0]["cause"]
        assert "killed on" in cause
        assert "30 s" in cause
        heir.await_live(0, 1, seconds=120)
    stage.verify()


@pytest.mark.long
def test_a_killed_static_member_of_the_consumer_protocol_takes_its_place_again(two_partitions: Stage) -> None:
    stage = two_partitions
    process = stage.process("a", **STATIC, **KIP848).await_live(0, 1)
    stage.feed(500)
    stage.await_all()
    for _ in range(3):
        process.kill()
        process.start().await_live(0, 1, seconds=120)
        assert all("UNRELEASED_INSTANCE_ID" in event["cause"] for event in process.events("waiting"))
    stage.feed(500)
    stage.await_all()
    stage.verify()


#: joins as `one`, and is killed when it has revoked partitions and has not joined again
DIES = """
import os, sys
from confluent_kafka import Consumer
given = {"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "group.instance.id": "one"}
given |= {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 200000}
given |= {"max.poll.interval.ms": 300000, "heartbeat.interval.ms": 500, "enable.auto.commit": False}
consumer = Consumer(given)
consumer.subscribe([sys.argv[3]], on_assign=lambda *_: print("joined", flush=True), on_revoke=lambda *_: os._exit(9))
while True:
    consumer.poll(0.1)
"""


@pytest.mark.long
def test_a_member_that_was_killed_in_a_rebalance_leaves_no_partition_without_an_owner(stage: Stage) -> None:
    """Its next process comes back in its place without a rebalance, and the revoked partitions have no owner."""
    names = stage.names
    command = [sys.executable, "-c", DIES, stage.servers, names.group, names.input]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as dying:
        try:
            assert dying.stdout is not None
            assert dying.stdout.readline() == "joined\n"
            stage.feed(500)
            other = stage.process("two", **STATIC, **LONG)
            assert dying.wait(60) == 9
        finally:
            dying.kill()
    with named(stage, "one", LONG) as again:
        await_true(lambda: len(live(again)) + len(other.live()) == 4, "every partition has an owner", 90)
        found = [*again.events("assignment_incomplete"), *other.events("assignment_incomplete")]
        assert len(found) >= 1
        stage.feed(500)
        stage.await_all()
    stage.verify()
