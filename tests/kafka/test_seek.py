"""The seek to a partition's next offset, on an input whose first records are deleted."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.listener import ResumingListener

from statehold.api.record import Message
from statehold.common.names import Names
from statehold.config.sections.connection import KafkaSettings
from statehold.config.settings import Settings
from statehold.dev import Cluster
from statehold.kafka.clients.consumer import KafkaGroupConsumer
from statehold.ports import ConsumerTrouble
from statehold.telemetry.log_events import Log

pytestmark = pytest.mark.kafka
GONE, END = 100, 120


@pytest.fixture
def truncated(kafka: Cluster) -> str:
    """A topic of one partition that begins at GONE and ends at END."""
    topic, admin = f"seek-{uuid.uuid4().hex[:8]}", AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(END):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(30) == 0
    place = TopicPartition(topic, 0, GONE)
    admin.delete_records([place])[place].result(30)
    return topic


def test_a_fetch_that_was_too_early_does_not_spoil_the_seek(kafka: Cluster, truncated: str) -> None:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
    consumer = KafkaGroupConsumer(settings, Names(f"seeks-{uuid.uuid4().hex[:8]}", truncated), Log())
    try:
        consumer.subscribe(ResumingListener(consumer))
        troubles = _until(consumer, lambda messages, troubles: bool(troubles))[1]
        assert troubles[0].out_of_range
        consumer.seek(0, GONE + 5)
        messages = _until(consumer, lambda messages, troubles: len(messages) >= END - GONE - 5)[0]
        assert [message.offset() for message in messages] == list(range(GONE + 5, END))
    finally:
        consumer.close(10)


def _until(
    consumer: KafkaGroupConsumer, enough: Callable[[list[Message], list[ConsumerTrouble]], bool]
) -> tuple[list[Message], list[ConsumerTrouble]]:
    messages: list[Message] = []
    troubles: list[ConsumerTrouble] = []
    deadline = time.monotonic() + 60
    while not enough(messages, troubles):
        assert time.monotonic() < deadline, (messages, troubles)
        came, wrong = consumer.consume(100, 0.1)
        messages += came
        troubles += wrong
    return messages, troubles
