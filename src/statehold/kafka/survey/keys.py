"""Reads the keys of an input's newest records."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from statehold.common.deadline import Deadline
from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.common.client_log import quiet
from statehold.kafka.survey.cluster import ClusterSurvey
from statehold.kafka.survey.partitioners import KeySample

#: offsets of each partition, and partitions of an input; a transaction's marker takes an offset, too
_NEWEST: Final = 100
_PARTITIONS: Final = 32
#: seconds
_PATIENCE: Final = 10.0
_POLL: Final = 0.1


def newest_keys(settings: Settings, group: str, cluster: ClusterSurvey, topic: str, partitions: int) -> KeySample:
    """Sample the newest records of up to 32 partitions, those of open and aborted transactions too. Blocks for seconds.

    :raises KafkaTrouble: the offsets or the records could not be read.
    """
    found: dict[bytes, set[int]] = {}
    ends: dict[int, int] = {}
    starts: list[TopicPartition] = []
    for partition in sorted({number * partitions // _PARTITIONS for number in range(_PARTITIONS)}):
        first, _, end = cluster.ends(topic, partition)
        if first < end:
            ends[partition] = end
            starts.append(TopicPartition(topic, partition, max(first, end - _NEWEST)))
    config = quiet(client.reader(settings, group, isolation="read_uncommitted"), "keys")
    with closing(Consumer(config)) as consumer:
        if starts:
            consumer.assign(starts)
        deadline = Deadline(_PATIENCE)
        while ends:
            if deadline.passed:
                raise KafkaTrouble(f"the newest records of {topic} were not read within {_PATIENCE:g} s")
            for message in consumer.consume(_NEWEST, _POLL):
                where, key, error = message.partition(), message.key(), message.error()
                if where is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
                    continue  # the client repeats the request, until the deadline
                if error is not None or (message.offset() or 0) >= ends.get(where, 0) - 1:
                    ends.pop(where, None)
                if error is None and key:
                    found.setdefault(key, set()).add(where)
    return KeySample(topic, partitions, found)
