"""What was read ahead of a retry topic: handed over when it is due, again until a mark passes it, and after a loss."""

from __future__ import annotations

from typing import Any

import pytest

from statehold.api.record import MemoryMessage
from statehold.kafka.feeds.retry_topic import RetryLane
from statehold.messages.dead_letter import Failure
from statehold.messages.retry_record import retried


class Logged:
    """A log that remembers."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def error(self, event: str, **_: object) -> None:
        self.events.append(event)


class Feed:
    """Records the requests to read again, and the log events."""

    topic = "retry"

    def __init__(self) -> None:
        self.changes: list[int] = []
        self.log = Logged()

    def change(self, lane: RetryLane, *, leave: bool = False) -> None:
        self.changes.append(lane.next)


@pytest.fixture
def feed() -> Feed:
    return Feed()


@pytest.fixture
def lane(feed: Any) -> Any:
    return RetryLane(feed, 0, ["input"])


def put(lane: Any, *offsets: int, due: int = 100) -> None:
    """Records of the retry topic, each due `due` and its offset later."""
    for offset in offsets:
        was = MemoryMessage("input", 0, 1000 + offset, b"value", b"key")
        headers = retried("retry", was, Failure("E", "text", 1), 0, due + offset)[7]
        lane.put(MemoryMessage("retry", 0, offset, was.value(), was.key(), headers))


def ids(lane: Any, position: int, now: int) -> tuple[list[int], int]:
    found, end = lane.due(position, now)
    return [each.message.offset() for each in found], end


def test_a_due_record_is_handed_over_until_a_commit_record_passes_it(lane: Any) -> None:
    assert ids(lane, 0, 0) == ([], 0)
    put(lane, 0, 1, 2)
    assert ids(lane, 0, 99) == ([], 0)
    assert ids(lane, 0, 101) == ([1000, 1001], 2)
    assert ids(lane, 0, 101) == ([1000, 1001], 2), "no mark has passed them"
    assert ids(lane, 2, 102) == ([1002], 3)
    assert lane.held == 1


def test_a_foreign_record_is_logged_and_skipped(feed: Feed, lane: Any) -> None:
    ids(lane, 0, 0)
    lane.put(MemoryMessage("retry", 0, 0, b"stray"))
    put(lane, 1)
    assert feed.log.events == ["retry_rejected"]
    assert ids(lane, 0, 200) == ([1001], 2)


def test_a_limited_number_is_held_and_the_rest_is_read_again(lane: Any) -> None:
    ids(lane, 0, 0)
    put(lane, *range(2100))
    assert (lane.held, lane.next, lane.full) == (2000, 2000, True)
    ids(lane, 1600, 0)
    assert (lane.held, lane.full) == (400, False)
    put(lane, *range(2000, 2100))
    assert ids(lane, 2099, 9999) == ([3099], 2100)


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_recreated_topic_is_logged_and_read_from_its_beginning(feed: Feed, lane: Any, number: int) -> None:
    ids(lane, 3, 0)
    lane.gone()
    assert feed.log.events == ["retries_gone"]
    lane.next = -2  # as the feed does
    put(lane, *range(number))
    position, handled = 3, list[int]()
    for _ in range(3):
        found, position = ids(lane, position, 9999)
        handled += found
        put(lane, *range(number, number + 1))
    assert handled == [1000 + offset for offset in range(number + 1)]
