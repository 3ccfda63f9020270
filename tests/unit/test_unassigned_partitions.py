"""Partitions that a stable group has assigned to no member: found after nine seconds, and only after an assignment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from statehold.balancer.unassigned_partitions import UnassignedPartitions, leaves_unassigned
from statehold.config import Settings
from statehold.config.sections.connection import GroupSettings
from statehold.config.sections.service import ServiceSettings
from statehold.errors import KafkaTrouble
from statehold.health.group_check import GroupCheck
from statehold.ports import ConsumerGroup, GroupMember
from statehold.telemetry.log_events import Log
from statehold.testing.memory.clock import ManualClock
from statehold.testing.stepped import EventLog, Later


class Group:
    """What a description of the group returns, and the check of one member."""

    def __init__(self) -> None:
        self.clock, self.log, self.reads = ManualClock(), EventLog(), 0
        self.view: ConsumerGroup | None = None
        check = GroupCheck[frozenset[int]](self._read, Log(self.log), self.clock, Later)
        self.check = UnassignedPartitions(check, 3, Log(self.log))

    def _read(self) -> ConsumerGroup:
        self.reads += 1
        if self.view is None:
            raise KafkaTrouble("the coordinator does not answer")
        return self.view

    def shows(self, *partitions: tuple[int, ...], state: str = "stable") -> None:
        members = tuple(GroupMember(f"m{n}", f"m{n}", "host", f"m{n}", each) for n, each in enumerate(partitions))
        self.view = ConsumerGroup(state, members)

    def turns(self, seconds: float) -> float | None:
        """After how many seconds it was found; None: not in that time."""
        for step in range(int(seconds * 10)):
            if self.check.found():
                return step / 10
            self.clock.advance(0.1)
        return None


def test_partitions_without_an_owner_are_found_once() -> None:
    group = Group()
    group.shows((0,), (2,))
    group.check.begin()
    after = group.turns(30)
    assert after is not None
    assert 12 <= after <= 14
    assert group.log.events == [("assignment_incomplete", {"partitions": [1]})]
    reads = group.reads
    assert group.turns(60) is None
    assert group.reads == reads


def test_nothing_is_read_before_an_assignment_and_after_two_complete_views() -> None:
    group = Group()
    group.shows((0, 1), (2,))
    assert group.turns(30) is None
    assert group.reads == 0
    group.check.begin()
    assert group.turns(60) is None
    assert group.reads == 2


@pytest.mark.parametrize("between", ["rebalance", "complete", "silence", "other partitions"])
def test_only_the_same_partitions_for_nine_seconds_count(between: str) -> None:
    group = Group()
    group.shows((0,), (2,))
    group.check.begin()
    assert group.turns(10) is None
    match between:
        case "rebalance":
            group.shows((0,), (2,), state="preparing rebalancing")
        case "complete":
            group.shows((0, 1), (2,))
        case "silence":
            group.view = None
        case _:
            group.shows((0,), (1,))
    assert group.turns(3.5) is None
    group.shows((0,), (2,))
    if between == "silence":
        assert group.turns(30) is not None
    else:
        assert group.turns(8) is None


def test_only_static_members_of_a_cooperative_group_check() -> None:
    base = Settings()
    named = replace(base, service=ServiceSettings(instance="one"))
    static = replace(named, group=GroupSettings(membership="static"))
    assert not leaves_unassigned(base)
    assert leaves_unassigned(static)
    assert leaves_unassigned(replace(base, group=GroupSettings(instance_id="one")))
    assert not leaves_unassigned(replace(named, group=GroupSettings(membership="static", assignor="range")))
