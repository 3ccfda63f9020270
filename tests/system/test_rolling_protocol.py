"""A running group changes its protocol one process at a time, under load: nothing lost, nothing twice."""

from __future__ import annotations

import pytest
from tests.support.processes import Process, await_true
from tests.support.stage import KIP848, Stage, StageFactory

pytestmark = [pytest.mark.kafka, pytest.mark.long]

RANGE = {"STATEHOLD_GROUP__ASSIGNOR": "range"}
STEPS = [("range", RANGE), ("consumer", KIP848), ("sticky", {})]
#: brokers do not let a group with sticky members change its protocol: the newcomers wait for the last of them to leave
BACK = [("consumer-2", KIP848), ("range-2", RANGE)]


def test_from_range_to_sticky_and_back_by_way_of_the_consumer_protocol(stages: StageFactory) -> None:
    stage = stages(4).create_topics()
    members = [stage.process(f"{name}-{STEPS[0][0]}", **STEPS[0][1]) for name in "ab"]
    await_shared(stage, members)
    with stage.load(300):
        for step, settings in STEPS[1:]:
            for i, name in enumerate("ab"):
                assert members[i].stop(120) == 0
                members[i] = stage.process(f"{name}-{step}", **settings)
                await_shared(stage, members)
                stage.await_progress()
        for step, settings in BACK:
            old, members = members, []
            for i, name in enumerate("ab"):
                if step == "consumer-2":
                    members.append(stage.process(f"{name}-{step}", **settings))
                assert old[i].stop(120) == 0
                if step != "consumer-2":
                    members.append(stage.process(f"{name}-{step}", **settings))
            await_shared(stage, members)
            stage.await_progress()
    stage.await_all()
    for process in stage.processes.values():
        assert not process.events("failed", "thread_died"), process.name
    stage.verify()


def test_range_and_sticky_do_not_mix_and_the_newcomer_says_so(stages: StageFactory) -> None:
    stage = stages(2).create_topics()
    old = stage.process("old", **RANGE).await_live(0, 1)
    new = stage.process("new")
    await_true(lambda: new.exit_code is not None or "INCONSISTENT_GROUP_PROTOCOL" in new.tail(200), "it is refused")
    await_true(lambda: "INCONSISTENT_GROUP_PROTOCOL" in new.tail(200), "it is refused by name")
    assert not new.events("live")
    stage.feed(200)
    stage.await_partition(0, stage.ends()[0])
    stage.await_partition(1, stage.ends()[1])
    assert old.live() == {0, 1}
    stage.verify()


def await_shared(stage: Stage, members: list[Process]) -> None:
    """Every partition is live with exactly one of them, and each has some."""

    def shared() -> bool:
        held = [process.live() for process in members]
        return all(held) and sorted(p for each in held for p in each) == list(range(stage.partitions))

    await_true(shared, "shared", 120)
