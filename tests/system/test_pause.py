"""Paused partitions commit, hold no transaction open, stay where they are, across restarts and owners (issue 5, 1)."""

from __future__ import annotations

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage, StageFactory

from statehold.admin.commands import Commander
from statehold.admin.topics import ServiceTopics
from statehold.messages.command import GO_ON, PAUSE

pytestmark = pytest.mark.kafka


def order(stage: Stage, name: str, *partitions: int) -> dict[int, int]:
    """As `statehold pause|resume --partitions`; the position of each in the mark that acknowledges it."""
    commander = Commander(stage.settings(), stage.names)
    answers = commander.await_answers(commander.send(name, partitions, control=True), 120, full=False)
    assert all(answer.position is not None for answer in answers)
    return {answer.partition: answer.position or 0 for answer in answers}


def test_a_pause_commits_keeps_the_member_and_outlives_restarts_and_owners(stages: StageFactory) -> None:
    stage = stages(2)
    topics = ServiceTopics(stage.settings(), stage.names, [stage.output])
    assert all(finding.good for finding in topics.create("beginning", partitions=2, control=True))
    with Local(stage) as local, stage.load(500):
        local.await_live(0, 1)
        stage.await_progress()
        members = stage.group.members()
        order(stage, PAUSE, 0)
        await_true(lambda: local.events("paused"), "it stands still")
        assert local.events("paused")[0]["partition"] == 0
        await_true(lambda: standing(stage, local), "nothing of it is open")
        still = stage.group.positions(stage.names.input)[0]
        stage.await_partition(1, stage.group.positions(stage.names.input)[1] + 500)
        assert stage.group.positions(stage.names.input)[0] == still
        assert local.partitions()[0]["paused"]
        assert local.partitions()[1]["paused"] is None
        assert [each.member_id for each in stage.group.members()] == [each.member_id for each in members]
    # The next owner pauses as well, and knows the command from the commit record alone.
    heir = stage.process("heir")
    heir.await_live(0, 1)
    assert heir.await_event("paused")["partition"] == 0
    stage.await_partition(1, stage.ends()[1])
    assert stage.group.positions(stage.names.input)[0] == still
    # Twice is no more than once; and then it continues.
    order(stage, PAUSE, 0)
    assert order(stage, GO_ON, 0) == {0: still}
    heir.await_event("resumed")
    stage.await_all()
    order(stage, PAUSE)
    assert heir.stop() == 0
    assert not heir.events("aborted", "failed")
    stage.verify()


def standing(stage: Stage, local: Local) -> bool:
    """All that it has handled is committed, and none of its transactions is open: its changelog has no other writer."""
    committed = local.partitions()[0]["position"] == stage.group.positions(stage.names.input)[0]
    place, spec = TopicPartition(stage.names.changelog, 0), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    ends = {
        stage.admin.list_offsets({place: spec}, isolation_level=isolation)[place].result(30).offset
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    }
    return committed and len(ends) == 1
