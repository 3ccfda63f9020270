"""Keys land where Kafka's own Java producer puts them, sent through an Output or computed in Python."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from statehold import Output
from statehold.bound.output import PartitionOutput
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.config.sections.connection import KafkaSettings
from statehold.config.settings import Settings
from statehold.dev import Cluster
from statehold.dev.jars import class_path
from statehold.dev.java import find_java
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.messages.sent import Sent
from statehold.telemetry.log_events import Log

PARTITIONS = 7
COUNTS = (1, 2, PARTITIONS, 100, 9973)

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(shutil.which("javac") is None, reason="Java's side is compiled: needs a JDK (javac)"),
]


@pytest.fixture(scope="module")
def keys() -> list[bytes]:
    """A thousand different keys of 0 to 40 bytes of any value: every remainder of the hash's blocks of four."""
    chance = random.Random(1000)
    made = {chance.randbytes(length % 41) for length in range(1, 1100)} | {b""}
    return sorted(made)[:1000]


@pytest.fixture(scope="module")
def java(keys: list[bytes]) -> dict[int, list[int]]:
    """What `BuiltInPartitioner.partitionForKey` of the broker's own kafka-clients answers, by partition count."""
    source = Path(__file__).with_name("Partitions.java")
    command = [find_java(), "-cp", class_path(), str(source), *map(str, COUNTS)]
    text = "".join(f"{key.hex()}\n" for key in keys)
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    rows = [[int(each) for each in line.split()] for line in done.stdout.splitlines()]
    return {count: [row[at] for row in rows] for at, count in enumerate(COUNTS)}


def test_an_output_puts_keys_where_java_does(kafka: Cluster, keys: list[bytes], java: dict[int, list[int]]) -> None:
    topic = f"keys-{uuid.uuid4().hex[:8]}"
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap_servers))
    TopicAdmin(Admin(settings, topic)).create(topic, PARTITIONS, 1, {})
    sent: list[Sent] = []
    output = PartitionOutput(Output(topic, value=bytes)).bind(sent, PARTITIONS)
    for key in keys:
        output.send(b"x", key=key)

    producer = KafkaTransactions(settings, Names("keys", topic), 0, Log(), time.monotonic)
    producer.fence(lambda: False)
    producer.begin()
    producer.send(sent)
    producer.commit()
    producer.drop()

    landed = partitions_of_keys(kafka.bootstrap_servers, topic, len(keys))
    assert len(keys) == 1000
    assert [landed[key] for key in keys] == java[PARTITIONS]


@pytest.mark.parametrize("count", COUNTS)
def test_murmur2_in_python_is_javas(keys: list[bytes], java: dict[int, list[int]], count: int) -> None:
    assert [murmur2(key, count) for key in keys] == java[count]


def test_without_a_key_every_partition_gets_its_share() -> None:
    assert {murmur2(None, 3) for _ in range(1000)} == {0, 1, 2}


def partitions_of_keys(servers: str, topic: str, count: int) -> dict[bytes, int]:
    """Where each key lies, read by a plain consumer."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, "isolation.level": "read_committed"})
    landed: dict[bytes, int] = {}
    deadline = time.monotonic() + 60
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        while len(landed) < count:
            assert time.monotonic() < deadline, f"{len(landed)} of {count} keys came back"
            for message in consumer.consume(count, 0.2):
                key, partition = message.key(), message.partition()
                assert message.error() is None
                assert partition is not None
                # The client gives back an empty key as None; it was hashed as the empty key that it is.
                landed[key or b""] = partition
    finally:
        consumer.close()
    return landed
