"""Why a member has no partition: in words that name who is waited for."""

from __future__ import annotations

from collections.abc import Callable

from statehold.balancer.join_diagnosis import Joining, why
from statehold.common.background_call import Beside
from statehold.ports import GroupView, MemberView
from statehold.telemetry.log_events import Log
from statehold.testing.clock import ManualClock
from statehold.testing.stepped import EventLog, Later


def member(name: str, *partitions: int) -> MemberView:
    return MemberView(f"{name}-id", name, "10.0.0.1", "", partitions)


def test_a_dead_member_holds_the_group_until_its_session_ends() -> None:
    reason = why(GroupView("preparing rebalancing", (member("old"), member("new"))), "new-id", 2, 10.0)
    assert reason is not None
    assert reason.kind == "waiting"
    assert "old on 10.0.0.1" in reason.text
    assert "10 s" in reason.text


def test_a_dead_member_that_still_holds_everything_is_no_reason_to_be_called_a_standby() -> None:
    reason = why(GroupView("stable", (member("old", 0, 1), member("new"))), "new-id", 2, None)
    assert reason is not None
    assert reason.kind == "waiting"
    assert "still held by old" in reason.text


def test_more_members_than_partitions_makes_a_standby() -> None:
    view = GroupView("stable", (member("a", 0), member("b", 1), member("c")))
    reason = why(view, "c-id", 2, 10.0)
    assert reason is not None
    assert reason.kind == "standby"


def test_nothing_is_said_of_a_group_of_one() -> None:
    assert why(GroupView("stable", (member("new"),)), "new-id", 2, 10.0) is None


def test_it_is_told_once_and_forgotten_with_the_first_partition() -> None:
    clock, log = ManualClock(), EventLog()
    view = GroupView("stable", (member("a", 0), member("b", 1), member("c")))

    def beside(call: Callable[[], None], name: str) -> Beside:
        return Later(call, name)

    joining = Joining(lambda: view, 2, 10.0, Log(log), clock, beside)
    for _ in range(100):
        joining.turn(empty=True, member=lambda: "c-id")
        clock.advance(1.0)
    assert [event for event, _ in log.events] == ["standby"]
    assert "all 2 partitions" in str(joining.text)
    joining.turn(empty=False, member=lambda: "c-id")
    assert joining.text is None
