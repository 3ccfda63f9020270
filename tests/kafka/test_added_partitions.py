"""A `Client` that lives while partitions are added writes to the new partition of a key, and reads its replies."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.support.processes import await_true

from statehold import Client
from statehold.client import asking
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.config import load
from statehold.dev import Cluster

pytestmark = pytest.mark.kafka

#: a key whose partition of four is not among the first two
KEY = next(name for name in map(str, range(1000)) if murmur2(name.encode(), 4) != murmur2(name.encode(), 2))


@pytest.fixture
def client(kafka: Cluster) -> Iterator[Client]:
    """Return a client of a service that does not run; its topics have two partitions."""
    run = uuid.uuid4().hex[:8]
    names = Names(f"grown-{run}", f"grown-input-{run}")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic, 2) for topic in (names.input, names.replies)]).values():
        future.result(30)
    settings = load(env={"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers})
    with Client(names.service, settings, input=names.input) as client:
        yield client


def grow(servers: str, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_partitions([NewPartitions(topic, 4) for topic in topics]).values():
        future.result(30)
    await_true(
        lambda: all(len(admin.list_topics(topic, 10).topics[topic].partitions) == 4 for topic in topics), "all grow"
    )


def answer(servers: str, names: Names, partition: int) -> None:
    """Answer the first request of a partition, as a service would."""
    with_requests = Consumer({"bootstrap.servers": servers, "group.id": "answers", "auto.offset.reset": "earliest"})
    with_requests.assign([TopicPartition(names.input, partition, 0)])
    found: list[Message] = []

    def asked() -> bool:
        found.extend(with_requests.consume(1, 0.2))
        return any(message.error() is None and message.headers() for message in found)

    await_true(asked, f"a request is on partition {partition}", 60)
    message = next(each for each in found if each.error() is None and each.headers())
    headers = dict(message.headers() or [])
    with_requests.close()
    reply = {
        "statehold-reply": headers["statehold-request"],
        "statehold-reply-to": headers["statehold-reply-to"],
        "statehold-outcome": b"answered",
        "statehold-offset": b"0",
    }
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(names.replies, b"7", message.key(), partition, headers=list(reply.items()))
    producer.flush(30)


@pytest.mark.parametrize("call", ["blocking", "coroutine"])
def test_requests_and_records_follow_added_partitions(
    kafka: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    names, servers = client.names, kafka.bootstrap_servers
    monkeypatch.setattr(asking, "_COUNT_AGAIN", 0.0)
    before, after = murmur2(KEY.encode(), 2), murmur2(KEY.encode(), 4)
    with ThreadPoolExecutor() as threads:
        answering = threads.submit(answer, servers, names, before)
        assert client.ask_blocking(b"1", key=KEY, reply=int, timeout=30) == 7
        answering.result(30)
        assert client.send_blocking(b"1", key=KEY, timeout=30).partition == before
        grow(servers, names.input, names.replies)
        answering = threads.submit(answer, servers, names, after)
        if call == "blocking":
            assert client.ask_blocking(b"1", key=KEY, reply=int, timeout=30) == 7
            assert client.send_blocking(b"1", key=KEY, timeout=30).partition == after
        else:
            assert asyncio.run(client.ask(b"1", key=KEY, reply=int, timeout=60)) == 7
            assert asyncio.run(client.send(b"1", key=KEY, timeout=30)).partition == after
        answering.result(30)
