"""The queues that the manager looks at: those that may hold records, and those that flow control has paused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from statehold.api.record import Message
from statehold.balancer.assignment import Assignment, Track
from statehold.ports import WorkerReport


class Offset:
    """The part of a message that a hand-over reads."""

    def offset(self) -> int:
        return 0


class Queue:
    """A worker's queue; `depth` is what the test says."""

    def __init__(self) -> None:
        self.depth = 0

    def offer(self, stream: int, previous: int, messages: Sequence[Message]) -> None:
        self.depth += len(messages)


MESSAGES: Any = [Offset(), Offset()]


@pytest.fixture
def assignment() -> Assignment:
    """Three partitions, of which two are live."""
    made = Assignment()
    for partition in range(3):
        worker: Any = Queue()
        track = made.add(partition, Track(worker))
        if partition < 2:
            track.go_live(WorkerReport(partition, "live", position=0, stream=1))
    return made


def test_only_queues_that_were_given_records_are_looked_at_until_they_are_empty(assignment: Assignment) -> None:
    for partition in range(3):
        assignment.hand_over(partition, MESSAGES)
    assert assignment.depths() == {0: 2, 1: 2}  # 2 is not live
    assert not assignment.has_empty(assignment.depths())
    assignment.tracks[0].worker.depth = 0  # type: ignore[misc]
    assert assignment.depths() == {1: 2}
    assert assignment.has_empty(assignment.depths())
    assignment.hand_over(0, MESSAGES)
    assert assignment.depths() == {0: 2, 1: 2}


def test_a_paused_queue_is_looked_at_when_it_is_empty_because_it_must_be_resumed(assignment: Assignment) -> None:
    assignment.hand_over(0, MESSAGES)
    assignment.tracks[0].paused = True
    assignment.tracks[0].worker.depth = 0  # type: ignore[misc]
    assert assignment.depths() == {0: 0}
    assert assignment.paused() == {0}
    assignment.tracks[0].paused = False
    assert assignment.depths() == {}


def test_a_partition_that_failed_or_has_a_new_worker_is_left_out(assignment: Assignment) -> None:
    assignment.hand_over(0, MESSAGES)
    assignment.hand_over(1, MESSAGES)
    assignment.tracks[0].live = False
    worker: Any = Queue()
    assignment.add(1, Track(worker)).go_live(WorkerReport(1, "live", position=0, stream=1))
    assert assignment.depths() == {}
    assert assignment.paused() == set()
