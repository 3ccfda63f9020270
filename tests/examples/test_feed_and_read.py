"""The demo's own tools on a real broker: what was fed is read back, aborted transactions are not."""

from time import monotonic
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from examples.clearing.feed import records
from examples.clearing.market import trades
from examples.feeding import Feed
from examples.topics import by_key, read_committed

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka


def new_topic(kafka: Cluster, partitions: int) -> str:
    name = f"feed-{uuid4()}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


def test_an_account_stays_in_its_partition_and_in_order(kafka: Cluster) -> None:
    topic = new_topic(kafka, 4)
    Feed(kafka.bootstrap_servers, topic).send(records(trades(20_000, seed=5, accounts=100)))
    found = read_committed(kafka.bootstrap_servers, topic)
    assert sum(map(len, found.values())) == 20_000
    assert all(found.values())
    for events in by_key(found).values():
        ids = [event["id"] for event in events]
        assert ids == sorted(ids)


def test_a_feed_keeps_its_pace(kafka: Cluster) -> None:
    topic = new_topic(kafka, 1)
    began = monotonic()
    Feed(kafka.bootstrap_servers, topic, rate=2_000.0).send([(b"k", b"{}")] * 1_000)
    assert monotonic() - began >= 0.4  # the last 200 are due 0.4 seconds after the first


def test_aborted_transactions_are_not_read_and_do_not_shorten_the_rest(kafka: Cluster) -> None:
    topic = new_topic(kafka, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, b"k")
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    assert [raw.value for raw in read_committed(kafka.bootstrap_servers, topic)[0]] == [b"0", b"2", b"4"]
