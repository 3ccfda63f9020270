"""Diagnosis of a member without partitions: its text names the members that the group waits for."""

from __future__ import annotations

from statehold.balancer.join_diagnosis import JoinDiagnosis, explain
from statehold.health.group_check import GroupReading
from statehold.ports import ConsumerGroup, GroupMember
from statehold.telemetry.log_events import Log
from statehold.testing.memory.clock import ManualClock
from statehold.testing.stepped import EventLog, Later


def member(name: str, *partitions: int) -> GroupMember:
    return GroupMember(f"{name}-id", name, "10.0.0.1", "", partitions)


def test_the_group_waits_for_a_dead_member_until_its_session_ends() -> None:
    reason = explain(ConsumerGroup("preparing rebalancing", (member("old"), member("new"))), "new-id", 2, 10.0)
    assert reason is not None
    assert reason.kind == "waiting"
    assert "old on 10.0.0.1" in reason.text
    assert "10 s" in reason.text


def test_a_member_is_not_idle_while_a_dead_member_still_owns_every_partition() -> None:
    reason = explain(ConsumerGroup("stable", (member("old", 0, 1), member("new"))), "new-id", 2, None)
    assert reason is not None
    assert reason.kind == "waiting"
    assert "still assigned to old" in reason.text


def test_a_member_beyond_the_number_of_partitions_is_idle() -> None:
    view = ConsumerGroup("stable", (member("a", 0), member("b", 1), member("c")))
    reason = explain(view, "c-id", 2, 10.0)
    assert reason is not None
    assert reason.kind == "idle_member"


def test_a_group_of_one_gives_no_reason() -> None:
    assert explain(ConsumerGroup("stable", (member("new"),)), "new-id", 2, 10.0) is None


def test_the_reason_is_logged_once_and_cleared_by_the_first_partition() -> None:
    clock, log = ManualClock(), EventLog()
    view = ConsumerGroup("stable", (member("a", 0), member("b", 1), member("c")))

    reading = GroupReading(lambda: view, Log(log), clock, Later)
    joining = JoinDiagnosis(reading, 2, 10.0, Log(log), clock)
    for _ in range(100):
        joining.turn(empty=True, member=lambda: "c-id")
        clock.advance(1.0)
    assert [event for event, _ in log.events] == ["idle_member"]
    assert "the 2 partitions are assigned to a on" in str(joining.text)
    joining.turn(empty=False, member=lambda: "c-id")
    assert joining.text is None
