"""The client configurations on a real broker: what they refuse to create, and where they leave no trace."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.members import close_members

from statehold.config import Extra, KafkaSettings, Settings, client

if TYPE_CHECKING:
    from statehold.dev import Cluster

pytestmark = pytest.mark.kafka

SECONDS = 30.0


def _settings(kafka: Cluster, **extra: object) -> Settings:
    return Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, extra=Extra(extra)))


def _name(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


def _read_to_end(consumer: Consumer) -> list[Any]:
    """Messages up to the first end of partition."""
    values = []
    while (message := consumer.poll(SECONDS)) is not None:
        error = message.error()
        if error is None:
            values.append(message.value())
        elif error.code() == KafkaError._PARTITION_EOF:
            return values
        else:
            raise KafkaException(error)
    pytest.fail(f"no end of partition within {SECONDS} s")


def test_a_reader_reads_to_the_end_and_joins_no_group(kafka: Cluster) -> None:
    settings, topic, group = _settings(kafka), _name("topic"), _name("clearing")
    admin = AdminClient(client.admin(settings))
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    producer = Producer(client.producer(settings, _name("id")))
    producer.init_transactions(SECONDS)
    for commit in (True, False):
        producer.begin_transaction()
        producer.produce(topic, b"committed" if commit else b"aborted")
        producer.flush(SECONDS)
        producer.commit_transaction(SECONDS) if commit else producer.abort_transaction(SECONDS)
    expected = {"read_committed": [b"committed"], "read_uncommitted": [b"committed", b"aborted"]}
    for isolation, values in expected.items():
        config = client.reader(settings, group, isolation=isolation)  # type: ignore[arg-type]
        reader = Consumer(config)
        reader.assign([TopicPartition(topic, 0, 0)])
        assert _read_to_end(reader) == values
        groups = admin.list_consumer_groups().result(SECONDS)
        assert not [found for found in groups.valid if found.group_id.startswith(group)]
        reader.close()


def _produce(config: client.ClientConfig, topic: str) -> None:
    failed: list[KafkaError | None] = []
    producer = Producer(config)
    producer.produce(topic, b"x", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(SECONDS) == 0
    assert [error and error.code() for error in failed] == [KafkaError.UNKNOWN_TOPIC_OR_PART]


def _produce_in_transaction(config: client.ClientConfig, topic: str) -> None:
    producer = Producer(config)
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    with pytest.raises(KafkaException):
        producer.commit_transaction(SECONDS)
    producer.abort_transaction(SECONDS)


def _read(config: client.ClientConfig, topic: str) -> None:
    consumer = Consumer(config)
    consumer.assign([TopicPartition(topic, 0, 0)])
    # poll() never reports an assigned topic that does not exist: a restore must look it up first.
    assert consumer.poll(0) is None
    with pytest.raises(KafkaException) as rejected:
        consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS)
    assert rejected.value.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION)
    consumer.close()


def _subscribe(config: client.ClientConfig, topic: str) -> None:
    consumer = Consumer(config)
    consumer.subscribe([topic])
    message = consumer.poll(SECONDS)
    error = message.error() if message else None
    assert error is not None
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    close_members(consumer)


ATTEMPTS: dict[str, Callable[[Settings, str], None]] = {
    "consumer": lambda settings, topic: _subscribe(client.consumer(settings, _name("group")), topic),
    "reader": lambda settings, topic: _read(client.reader(settings, _name("group")), topic),
    "producer": lambda settings, topic: _produce_in_transaction(client.producer(settings, _name("id")), topic),
    "snapshot producer": lambda settings, topic: _produce(client.full_producer(settings), topic),
}


def test_no_client_creates_a_topic_even_where_the_broker_would(kafka_cluster: Any) -> None:
    kafka = kafka_cluster(settings={"auto.create.topics.enable": "true"})
    settings = _settings(kafka, **{"topic.metadata.propagation.max.ms": 500})
    topics = {what: _name(what.replace(" ", "-")) for what in ATTEMPTS}
    for what, attempt in ATTEMPTS.items():
        attempt(settings, topics[what])
    admin = AdminClient(client.admin(settings))
    assert not set(topics.values()) & admin.list_topics(timeout=SECONDS).topics.keys()
    eager = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    eager.produce(topics["producer"], b"x")
    assert eager.flush(SECONDS) == 0
    assert topics["producer"] in admin.list_topics(timeout=SECONDS).topics, "this broker does create topics"
