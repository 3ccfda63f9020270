"""The feed of the control topic waits for a topic that a service can do without, and reads it as soon as it exists."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import structlog

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.feeds import control_topic
from statehold.kafka.feeds.control_topic import ControlFeed
from statehold.kafka.feeds.topic_feed import Feed
from statehold.telemetry.log_events import Log


class Brokers:
    """Answers questions about topics: each with the next of `answers`, the last one again and again."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.asked = list(answers), 0

    def describe(self, topics: list[str]) -> dict[str, object]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(topics, answer)


def feed_of(brokers: Any) -> ControlFeed:
    return ControlFeed(Settings(), Names("bank", "payments"), brokers, Log())


def test_it_reads_once_the_topic_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    read = threading.Event()
    monkeypatch.setattr(control_topic, "_LOOK", 0.001)

    def run(feed: Feed) -> None:
        read.set()
        feed.close()

    monkeypatch.setattr(Feed, "_run", run)
    brokers = Brokers(None, KafkaTrouble("no broker"), None, "there")
    lane = feed_of(brokers).lane(0, lambda: None)
    assert lane.waiting(7) == ([], 7)
    assert read.wait(60)
    assert brokers.asked == 4


def test_a_topic_that_exists_is_not_asked_for_again() -> None:
    brokers = Brokers("there")
    feed = feed_of(brokers)
    assert [feed.exists() for _ in range(3)] == [True] * 3
    assert brokers.asked == 1


def test_the_same_trouble_is_logged_once() -> None:
    feed = feed_of(Brokers(KafkaTrouble("no broker"), KafkaTrouble("no broker"), KafkaTrouble("no right"), None))
    with structlog.testing.capture_logs() as logs:
        assert [feed.exists() for _ in range(4)] == [False] * 4
    assert [each["cause"] for each in logs if each["event"] == "kafka_retry"] == ["no broker", "no right"]


def test_a_feed_that_is_closed_before_its_topic_exists_ends() -> None:
    feed = feed_of(Brokers(None))
    feed.lane(0, lambda: None).waiting(0)
    thread = feed._thread
    assert thread is not None
    feed.close()
    thread.join(60)
    assert not thread.is_alive()
