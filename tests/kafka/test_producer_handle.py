"""A producer that comes after one that died in a transaction."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from statehold.dev import Cluster
from statehold.kafka.clients.producer_handle import ProducerHandle

pytestmark = pytest.mark.kafka

#: as long as librdkafka waits before it asks again, and more
LATE = 1.2


def test_new_clients_ask_for_the_end_of_a_predecessor_and_only_the_last_continues(kafka: Cluster) -> None:
    topic = f"handle-{uuid.uuid4().hex[:8]}"
    servers: dict[str, Any] = {"bootstrap.servers": kafka.bootstrap_servers}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    config = {**servers, "transactional.id": topic}
    dead = Producer(config)
    dead.init_transactions(30)
    dead.begin_transaction()
    dead.produce(topic, b"never committed")
    assert dead.flush(30) == 0

    handle = ProducerHandle(config, topic, lambda level, message: None)
    handle.get_to_know()
    initialised(handle)
    assert handle.made > 1, "librdkafka's own pace was waited for"

    until = time.monotonic() + LATE
    while time.monotonic() < until:  # a replaced client that still asked would fence this one
        handle.get().begin_transaction()
        handle.get().produce(topic, b"committed")
        handle.get().commit_transaction(30)
    with pytest.raises(KafkaException) as rejected:
        dead.commit_transaction(30)
    assert rejected.value.args[0].code() == KafkaError._FENCED


def initialised(handle: ProducerHandle) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            return handle.init(0.05)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
    pytest.fail("the broker did not let it in for 60 s")
