"""Finds the open transaction that hides the end of a partition, by the log alone."""

from __future__ import annotations

from contextlib import closing
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from statehold.common.deadline import Deadline
from statehold.config import client
from statehold.config.settings import Settings
from statehold.kafka.common.client_log import quiet
from statehold.kafka.common.error_actions import translate
from statehold.kafka.survey.cluster import ClusterSurvey

#: seconds to read the first record of the transaction
_PATIENCE: Final = 5.0
_POLL: Final = 0.1


class OpenTransaction(NamedTuple):
    """The oldest open transaction of a partition."""

    topic: str
    partition: int
    #: last stable offset, which is the transaction's first record in this partition
    stable: int
    #: high watermark
    end: int
    #: timestamp of that record in seconds since 1970, by the producer's clock or the broker's
    since: float

    @property
    def records(self) -> int:
        """Number of offsets hidden from readers of committed records."""
        return self.end - self.stable


def open_transaction_at(
    settings: Settings, cluster: ClusterSurvey, topic: str, partition: int
) -> OpenTransaction | None:
    """Return the oldest open transaction of a partition; None if every transaction has ended. Blocks for seconds.

    :raises KafkaTrouble: the leader did not return the end offsets.
    """
    _, stable, end = cluster.ends(topic, partition)
    if stable >= end:
        return None
    config = quiet(client.reader(settings, "statehold-txn", isolation="read_uncommitted"), "opened")
    with closing(Consumer(config)) as consumer:
        consumer.assign([TopicPartition(topic, partition, stable)])
        deadline = Deadline(_PATIENCE)
        while not deadline.passed:
            for message in consumer.consume(1, _POLL):
                if message.error() is None:
                    return OpenTransaction(topic, partition, stable, end, message.timestamp()[1] / 1000)
                return None  # the end of the log: the transaction has just ended
        return None


def fence_id(settings: Settings, transactional_id: str) -> None:
    """Abort the open transaction of an id and fence its producer. Blocks for `commit.timeout` at most.

    It uses the service's transaction timeout, because the brokers may reject the one of Kafka's own tool.

    :raises KafkaTrouble: the id was not fenced.
    """
    config = quiet(client.producer(settings, transactional_id), "txn")
    producer = Producer(config)
    try:
        producer.init_transactions(settings.commit.timeout)
    except KafkaException as error:
        raise translate(error) from error
