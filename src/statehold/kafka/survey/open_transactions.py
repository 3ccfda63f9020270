"""Which open transaction hides the end of a partition, as far as the log itself tells."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from statehold.config import client
from statehold.config.settings import Settings
from statehold.kafka.common.error_actions import translate
from statehold.kafka.common.transaction_taint import quiet_logger
from statehold.kafka.survey.cluster import ClusterSurvey

_PATIENCE: Final = 5.0


class OpenTransaction(NamedTuple):
    """The oldest open transaction of a partition."""

    topic: str
    partition: int
    #: last stable offset: the transaction's first record here
    stable: int
    #: high watermark
    end: int
    #: seconds since 1970: when that record was made (the producer's clock) or appended (the broker's)
    since: float

    @property
    def records(self) -> int:
        """Offsets that readers of committed records do not see yet."""
        return self.end - self.stable


def opened_at(settings: Settings, cluster: ClusterSurvey, topic: str, partition: int) -> OpenTransaction | None:
    """None where every transaction has ended. Blocks, 5 s at most for the record.

    :raises KafkaTrouble: the ends of the log did not come.
    """
    _, stable, end = cluster.ends(topic, partition)
    if stable >= end:
        return None
    config: dict[str, Any] = dict(client.reader(settings, "statehold-txn", isolation="read_uncommitted"))
    config["logger"] = quiet_logger("opened")
    consumer = Consumer(config)
    try:
        consumer.assign([TopicPartition(topic, partition, stable)])
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            for message in consumer.consume(1, 0.1):
                if message.error() is None:
                    return OpenTransaction(topic, partition, stable, end, message.timestamp()[1] / 1000)
                return None  # the end: it was committed or aborted this moment
        return None
    finally:
        consumer.close()


def fence_id(settings: Settings, transactional_id: str) -> None:
    """Abort what this id has open and shut out its producer. Kafka's own tool would ask for a transaction timeout that
    the brokers may refuse; this asks for ours. Blocks, for the patience of a commit.

    :raises KafkaTrouble: it did not come to that.
    """
    config: dict[str, Any] = dict(client.producer(settings, transactional_id))
    config["logger"] = quiet_logger("txn")
    producer = Producer(config)
    try:
        producer.init_transactions(settings.commit.timeout)
    except KafkaException as error:
        raise translate(error) from error
