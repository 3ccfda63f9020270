"""Standby replicas on real brokers: the owner is killed under load, the other instance continues from its copy."""

from __future__ import annotations

import pytest
from tests.support.processes import Process
from tests.support.stage import Stage, StageFactory

pytestmark = pytest.mark.kafka

STANDBY = {"STATEHOLD_GROUP__STANDBYS": "1", "STATEHOLD_SNAPSHOT__CHUNK_BYTES": "4096"}


def ready(process: Process) -> set[int]:
    """The partitions whose copies are there, as its log says."""
    held: set[int] = set()
    for event in process.events("standby_ready", "standby_dropped"):
        (held.add if event["event"] == "standby_ready" else held.discard)(event["partition"])
    return held


def test_the_owner_is_killed_under_load_and_the_copy_takes_over(stages: StageFactory) -> None:
    stage = stages(4).create_topics()
    first, _ = killed(stage)
    stage.feed(500)
    stage.await_all()
    assert first.live() == {0, 1, 2, 3}
    stage.verify()


def killed(stage: Stage) -> tuple[Process, Process]:
    """Two share the partitions; the second one dies, and the first one continues from its copies."""
    first, second = stage.process("first", **STANDBY), stage.process("second", **STANDBY)
    first.await_that(lambda: len(first.live()) == len(second.live()) == 2, "two partitions each", 120)
    stage.feed(3000)
    theirs = second.live()
    first.await_that(lambda: theirs <= ready(first), "copies of the other's partitions")
    with stage.load(per_second=2000):
        stage.await_progress()
        second.kill()
        first.await_live(0, 1, 2, 3)
        stage.await_progress()
    for partition in theirs:
        restored = [event for event in first.events("restored") if event["partition"] == partition][-1]
        assert restored["from_standby"] is True, restored
        assert 0 <= restored["deltas"] < restored["n"], "it read the tail and not the history"
    return first, second


@pytest.mark.long
def test_a_returning_member_gets_a_replica_again(stages: StageFactory) -> None:
    stage = stages(4).create_topics()
    first, second = killed(stage)
    second.start()  # and back: the group gives it two partitions, and the first one keeps copies again
    second.await_that(lambda: len(first.live()) == len(second.live()) == 2, "two partitions each")
    first.await_that(lambda: second.live() <= ready(first), "copies again")
    assert second.stop() == 0
    first.await_live(0, 1, 2, 3)
    stage.feed(500)
    stage.await_all()
    stage.verify()
