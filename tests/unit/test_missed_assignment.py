"""The comparison of a member's partitions with the group's, after a lost connection to the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from statehold.errors import KafkaTrouble
from statehold.health.group_check import GroupCheck
from statehold.kafka.clients.missed_assignment import MissedAssignment
from statehold.ports import ConsumerGroup, GroupMember
from statehold.telemetry.log_events import Log


class Done:
    def __init__(self, call: Callable[[], None], name: str) -> None:
        call()

    def ended(self, within: float = 0.0) -> bool:
        return True

    def wait(self) -> None: ...


class Watched:
    """A comparison with a clock by hand and a group by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.read = 0
        self.owned: set[int] = {0, 1}
        self.member = GroupMember("m", "a", "host", "", (0, 1), (0, 1))
        self.silent = False
        self.id = "m"
        self.compared = MissedAssignment(GroupCheck(self._group, Log(), lambda: self.now, Done), Log())

    def _group(self) -> ConsumerGroup:
        self.read += 1
        if self.silent:
            raise KafkaTrouble("no coordinator")
        return ConsumerGroup("stable", (self.member,))

    def lose(self, disconnects: int = 1, **other: Any) -> None:
        self.compared.saw({"GroupCoordinator": {"source": "logical", "disconnects": disconnects, **other}})

    def found_within(self, seconds: float) -> bool:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            if self.compared.found(self.owned, lambda: self.id):
                return True
        return False


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_group_is_read_only_after_a_lost_connection(watched: Watched) -> None:
    watched.lose(0)
    assert not watched.found_within(60)
    assert watched.read == 0
    watched.lose()
    assert not watched.found_within(60)
    assert watched.read == 2, "it agreed twice"
    watched.lose(1, req_timeouts=1)
    assert not watched.found_within(60)
    assert watched.read == 4


def test_a_connection_that_another_broker_lost_counts_for_nothing(watched: Watched) -> None:
    watched.compared.saw({"a:1/1": {"source": "learned", "disconnects": 5}})
    assert not watched.found_within(60)
    assert watched.read == 0


def test_a_missed_revocation_is_found(watched: Watched) -> None:
    watched.member = watched.member._replace(target=(0,))
    watched.lose()
    assert watched.found_within(15)
    assert not watched.found_within(60), "once"


def test_a_missed_partition_is_found(watched: Watched) -> None:
    watched.owned = {0}
    watched.lose()
    assert watched.found_within(15)


def test_a_partition_that_another_member_has_not_released_yet_is_not_missed(watched: Watched) -> None:
    watched.member = watched.member._replace(target=(0, 1, 2))
    watched.lose()
    assert not watched.found_within(60)


def test_a_difference_that_changes_starts_another_wait(watched: Watched) -> None:
    watched.owned = {0}
    watched.lose()
    for partition in range(1, 8):
        watched.owned = {partition}
        assert not watched.found_within(6)
    assert watched.found_within(15)


def test_a_difference_that_ends_is_forgotten(watched: Watched) -> None:
    watched.owned = {0}
    watched.lose()
    assert not watched.found_within(8)
    watched.owned = {0, 1}
    assert not watched.found_within(60)
    watched.owned = {0}
    assert not watched.found_within(60), "no connection was lost since"


def test_a_coordinator_that_does_not_answer_is_asked_again(watched: Watched) -> None:
    watched.owned, watched.silent = {0}, True
    watched.lose()
    assert not watched.found_within(60)
    watched.silent = False
    assert watched.found_within(15)


def test_a_member_that_the_group_has_removed_learns_of_it_by_its_heartbeat(watched: Watched) -> None:
    watched.owned, watched.member = {0}, watched.member._replace(id="another")
    watched.lose()
    assert not watched.found_within(60)


def test_a_difference_of_the_member_before_does_not_count_for_the_one_that_joined_since(watched: Watched) -> None:
    watched.member = watched.member._replace(partitions=(0, 1, 2))
    watched.lose()
    assert not watched.found_within(6)
    watched.id, watched.member = "n", watched.member._replace(id="n")
    assert not watched.found_within(6), "the new member has had no time for a heartbeat"
    assert watched.found_within(12)


def test_connections_that_are_lost_again_and_again_do_not_postpone_the_finding(watched: Watched) -> None:
    watched.owned = {0}
    found = False
    for count in range(1, 21):
        watched.lose(count)
        found = found or watched.found_within(1)
    assert found
