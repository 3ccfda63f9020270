"""A member of the protocol `consumer` closes at once though its input has just grown."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from statehold.common.names import Names
from statehold.config import load
from statehold.dev import Cluster
from statehold.kafka.clients.consumer import KafkaGroupConsumer
from statehold.telemetry.log_events import Log

pytestmark = pytest.mark.kafka

#: librdkafka's bare close hung in about two of three, until its deadline
MEMBERS = 4
#: seconds: the heartbeat that brings the new partitions comes after 5 s
GROWN_WITHIN = 60.0
CLOSED_WITHIN = 10.0


class Member:
    """A consumer that takes what it gets."""

    def __init__(self, cluster: Cluster, static_id: str) -> None:
        name = f"grown-{uuid.uuid4().hex[:8]}"
        self.topic = f"{name}.in"
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        self.admin.create_topics([NewTopic(self.topic, 2, 1)])[self.topic].result(30)
        servers = {"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": cluster.bootstrap_servers}
        settings = load(
            env=servers | {"STATEHOLD_GROUP__PROTOCOL": "consumer", "STATEHOLD_GROUP__INSTANCE_ID": static_id}
        )
        self.consumer = KafkaGroupConsumer(settings, Names(name, self.topic), Log())
        self.owned: set[int] = set()
        self.consumer.subscribe(self)

    def on_assign(self, partitions: Sequence[int]) -> None:
        self.consumer.assign(partitions)
        self.owned |= set(partitions)

    def on_revoke(self, partitions: Sequence[int]) -> None:
        self.owned -= set(partitions)
        self.consumer.unassign(partitions)

    def on_lost(self, partitions: Sequence[int]) -> None:
        self.on_revoke(partitions)

    def grow(self) -> None:
        self.admin.create_partitions([NewPartitions(self.topic, 4)])[self.topic].result(30)


@pytest.mark.parametrize("static_id", ["", "one"], ids=["dynamic", "static"])
def test_it_closes_at_once(kafka: Cluster, static_id: str) -> None:
    members = [Member(kafka, static_id) for _ in range(MEMBERS)]
    await_owned(members, 2)
    for each in members:
        each.grow()
    open_ones = list(members)
    slowest = 0.0
    deadline = time.monotonic() + GROWN_WITHIN
    while open_ones:
        assert time.monotonic() < deadline, [each.owned for each in open_ones]
        for each in list(open_ones):
            each.consumer.consume(1, 0.05)
            if len(each.owned) == 4:
                began = time.monotonic()
                assert each.consumer.close(CLOSED_WITHIN), "the close hangs"
                slowest = max(slowest, time.monotonic() - began)
                open_ones.remove(each)
    assert slowest < CLOSED_WITHIN / 2


def await_owned(members: Sequence[Member], count: int) -> None:
    deadline = time.monotonic() + GROWN_WITHIN
    while any(len(each.owned) < count for each in members):
        assert time.monotonic() < deadline, [each.owned for each in members]
        for each in members:
            each.consumer.consume(1, 0.05)
