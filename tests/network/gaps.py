"""How long a partition stood still, read from the times that brokers gave its records."""

from __future__ import annotations

import uuid

from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.support.stage import Stage


def longest_gap(stage: Stage, since: float) -> float:
    """Seconds between two committed records of one partition's increment, at most; after `since` (epoch)."""
    return max(_gap_of(stage, partition, since) for partition in range(stage.partitions))


def _gap_of(stage: Stage, partition: int, since: float) -> float:
    consumer = Consumer(
        {
            "bootstrap.servers": stage.servers,
            "group.id": f"gaps-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    longest, last = 0.0, since
    try:
        consumer.assign([TopicPartition(stage.names.changelog, partition, 0)])
        while True:
            message = consumer.poll(60)
            assert message is not None, "no end of the changelog topic"
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return round(longest, 1)
            if error is None and (at := message.timestamp()[1] / 1000) > since:
                longest, last = max(longest, at - last), at
    finally:
        consumer.close()
