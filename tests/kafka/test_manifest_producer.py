"""The producer of the manifests of many partitions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from statehold.config.sections.connection import KafkaSettings
from statehold.config.settings import Settings
from statehold.dev import Cluster
from statehold.dev.ports import free_ports
from statehold.errors import KafkaTrouble
from statehold.kafka.clients import full_producer
from statehold.kafka.clients.full_producer import ManifestProducer

pytestmark = pytest.mark.kafka
PARTITIONS = 20


@pytest.fixture
def topic(kafka: Cluster) -> str:
    name, admin = f"manifests-{uuid.uuid4().hex[:8]}", AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, PARTITIONS, 1, config={"max.message.bytes": "2000"})])[name].result(30)
    return name


@pytest.fixture
def producer(kafka: Cluster, topic: str) -> Iterator[ManifestProducer]:
    made = ManifestProducer(Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap_servers)), topic)
    yield made
    made.close()


def test_each_manifest_is_at_its_offset(kafka: Cluster, topic: str, producer: ManifestProducer) -> None:
    producer.write(dict.fromkeys(range(0, PARTITIONS, 2), b"before"))
    offsets = producer.write({partition: b"manifest %d" % partition for partition in range(PARTITIONS)})
    assert offsets == {partition: 1 - partition % 2 for partition in range(PARTITIONS)}
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic})
    consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in offsets.items()])
    found = {message.partition(): message.value() for message in consumer.consume(PARTITIONS, 30)}
    consumer.close()
    assert found == {partition: b"manifest %d" % partition for partition in range(PARTITIONS)}


def test_a_rejected_manifest_is_named(producer: ManifestProducer) -> None:
    with pytest.raises(KafkaTrouble, match=r"of partition 3: .*MSG_SIZE_TOO_LARGE"):
        producer.write({2: b"fits", 3: b"x" * 3000})


def test_without_an_acknowledgement_the_error_counts_them_and_names_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(full_producer, "_PATIENCE", 0.1)
    nowhere = Settings(kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_ports(1)[0]}"))
    producer = ManifestProducer(nowhere, "manifests")
    with pytest.raises(KafkaTrouble, match=r"0 of 2 manifests were acknowledged.* Next: run the command again"):
        producer.write({0: b"manifest", 1: b"manifest"})
    producer.close()
