"""A read that its caller abandons half way disturbs no later read of the reader, and no closed client."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from confluent_kafka import Message

from statehold.config.settings import Settings
from statehold.kafka.clients import reader as reading
from statehold.kafka.clients.reader import KafkaReader


class OneByOne:
    """A consumer that gives out one record in each poll, and nothing without an assignment."""

    topic, at, open = "", -1, True

    def __init__(self, config: dict[str, Any]) -> None: ...

    def list_topics(self, *_: Any) -> Any:
        return type("Topics", (), {"topics": {}})

    def assign(self, places: Any) -> None:
        self.topic, self.at = places[0].topic, places[0].offset

    def unassign(self) -> None:
        if not self.open:
            raise RuntimeError("Consumer closed")
        self.at = -1

    def consume(self, *_: Any) -> list[Message]:
        assert self.at >= 0, "nothing is assigned"
        self.at += 1
        return [Message(topic=self.topic, partition=0, offset=self.at - 1)]

    def close(self) -> None:
        self.open = False


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> KafkaReader:
    monkeypatch.setattr(reading, "Consumer", OneByOne)
    admin: Any = None
    return KafkaReader(Settings(), "group", admin, lambda: False, time.monotonic)


def opened(reader: KafkaReader, topic: str, start: int, end: int) -> Generator[Sequence[Message], None, None]:
    read = reader.read(topic, 0, start, end)
    assert isinstance(read, Generator)
    return read


def test_a_read_that_is_abandoned_when_the_next_one_has_begun_leaves_that_alone(reader: KafkaReader) -> None:
    first = opened(reader, "first", 0, 9)
    next(first)
    second = reader.read("second", 0, 3, 6)
    assert [message.offset() for message in next(second)] == [3]
    first.close()  # as when nothing refers to it any more
    assert [message.offset() for batch in second for message in batch] == [4, 5]


def test_a_read_that_is_abandoned_after_the_close_asks_nothing_of_the_client(reader: KafkaReader) -> None:
    read = opened(reader, "topic", 0, 9)
    next(read)
    reader.close()
    read.close()
