"""The consumer shows that its input was created again before it delivers a record of the new one."""

from __future__ import annotations

import time
import uuid

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.listener import ResumingListener

from statehold.common.names import Names
from statehold.config.sections.connection import KafkaSettings
from statehold.config.settings import Settings
from statehold.dev import Cluster
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.consumer import KafkaGroupConsumer
from statehold.telemetry.log_events import Log

pytestmark = pytest.mark.kafka
ROUNDS = 5


def test_the_new_id_comes_before_the_first_record_of_the_new_topic(kafka: Cluster) -> None:
    servers = kafka.bootstrap_servers
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=servers))
    topic, client = f"again-{uuid.uuid4().hex[:8]}", AdminClient({"bootstrap.servers": servers})
    names = Names(f"identities-{uuid.uuid4().hex[:8]}", topic)
    admin, consumer = Admin(settings, names.group), KafkaGroupConsumer(settings, names, Log())

    def described() -> str:
        """Return the topic's id; a broker may not know the topic at once."""
        deadline = time.monotonic() + 30
        while (facts := admin.describe([topic])[topic]) is None:
            assert time.monotonic() < deadline
        return facts.id

    client.create_topics([NewTopic(topic, 1)])[topic].result(30)
    try:
        consumer.subscribe(ResumingListener(consumer))
        fill(servers, topic, 0)
        read(consumer, 0, described())
        for number in range(1, ROUNDS + 1):
            client.delete_topics([topic])[topic].result(30)
            create_at_once(client, topic)
            if number % 2:
                await_out_of_range(consumer, described())  # the new topic is empty
            fill(servers, topic, number)  # longer each time, so that its end is behind the position in the old one
            read(consumer, number, described())
    finally:
        consumer.close(10)


def fill(servers: str, topic: str, number: int) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for _ in range(100 * (number + 1)):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(30) == 0


def create_at_once(client: AdminClient, topic: str) -> None:
    """Create it as soon as the controller has forgotten the old one."""
    deadline = time.monotonic() + 30
    while True:
        try:
            client.create_topics([NewTopic(topic, 1)])[topic].result(30)
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                raise


def await_out_of_range(consumer: KafkaGroupConsumer, known: str) -> None:
    """Poll until the old position is out of range, at which the new id is known, and go to the beginning."""
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline
        _, troubles = consumer.consume(1000, 0.1)
        if any(trouble.out_of_range for trouble in troubles):
            assert consumer.input.id == known
            consumer.seek(0, 0)
            return


def read(consumer: KafkaGroupConsumer, number: int, known: str) -> None:
    """Read to the end of the topic of this number, whose id is known at the poll that brings its first record.

    The first fetch may come before the topic has as many records as the old one: the position is out of range then.
    """
    deadline, last = time.monotonic() + 60, -1
    while last < 100 * (number + 1) - 1:
        assert time.monotonic() < deadline, f"no record of topic {number} after {last}"
        messages, troubles = consumer.consume(1000, 0.1)
        if any(trouble.out_of_range for trouble in troubles):
            assert consumer.input.id == known
            consumer.seek(0, 0)
        for message in messages:
            assert message.value() == str(number).encode()
            last = message.offset() or 0
        if messages:
            assert consumer.input.id == known
