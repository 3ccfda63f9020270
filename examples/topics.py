"""Reads committed records and positions with a plain client, like any downstream consumer."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple, Self
from uuid import uuid4

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

QUIET = {"log_level": 2}
"""Disables the log of a reader that outlives its broker."""


class Raw(NamedTuple):
    """A record of a partition; `timestamp` is in milliseconds since 1970."""

    key: str
    value: bytes
    timestamp: int = 0


def read_committed(bootstrap_servers: str, topic: str, patience: float = 60.0) -> dict[int, list[Raw]]:
    """Return every committed record of `topic` by partition, up to the last stable offset.

    The end-of-partition event marks the end, not a count, because transaction markers also have offsets.
    Raises TimeoutError if no record arrives for `patience` seconds, KafkaException for client errors.
    """
    consumer = _plain_consumer(bootstrap_servers)
    try:
        partitions = sorted(consumer.list_topics(topic, timeout=patience).topics[topic].partitions)
        records: dict[int, list[Raw]] = {partition: [] for partition in partitions}
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        unfinished = set(partitions)
        heard = monotonic()
        while unfinished:
            messages = consumer.consume(10_000, timeout=0.1)  # it waits for all of them, or for the time
            heard = monotonic() if messages else heard
            if monotonic() - heard > patience:
                raise TimeoutError(f"{topic}: nothing for {patience:.0f} s, unfinished: {sorted(unfinished)}")
            for message in messages:
                _take(message, records, unfinished)
        return records
    finally:
        consumer.close()


def by_key(partitions: Mapping[int, Sequence[Raw]]) -> dict[str, list[dict[str, Any]]]:
    """Decode JSON events and group them by key. Raises ValueError for a key in two partitions: it has no order."""
    events: dict[str, list[dict[str, Any]]] = defaultdict(list)
    home: dict[str, int] = {}
    for partition, records in partitions.items():
        for key, value, _ in records:
            if home.setdefault(key, partition) != partition:
                raise ValueError(f"key {key!r} is in partitions {home[key]} and {partition}")
            events[key].append(json.loads(value))
    return events


class Progress:
    """Reads a group's committed positions on a topic without joining the group."""

    def __init__(self, bootstrap_servers: str, group: str, topic: str) -> None:
        self._topic = topic
        # The AdminClient's request crashes librdkafka 2.16 if the group's coordinator has moved.
        self._consumer = _plain_consumer(bootstrap_servers, group)
        self._places: list[TopicPartition] = []

    def position(self) -> int:
        """Return the sum of the committed positions: the number of processed records, if they began at 0."""
        if not self._places:
            known = self._consumer.list_topics(self._topic, timeout=30).topics[self._topic].partitions
            self._places = [TopicPartition(self._topic, each) for each in known]
        return sum(max(each.offset, 0) for each in self._consumer.committed(self._places, timeout=30))


class Arrivals:
    """Counts the committed records of a topic. A context manager for one thread."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._consumer, self._topic = _plain_consumer(bootstrap_servers), topic
        self._count = 0

    def __enter__(self) -> Self:
        partitions = self._consumer.list_topics(self._topic, timeout=30).topics[self._topic].partitions
        self._consumer.assign([TopicPartition(self._topic, each, OFFSET_BEGINNING) for each in partitions])
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def count(self) -> int:
        """Return the number of records so far; waits up to a tenth of a second."""
        self._count += sum(message.error() is None for message in self._consumer.consume(10_000, 0.1))
        return self._count


def _plain_consumer(bootstrap_servers: str, group: str = "") -> Consumer:
    """Return a consumer that joins no group: it assigns partitions, or only reads the offsets of `group`."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group or f"proof-{uuid4()}",
            # With the default, an outage of all brokers lets requests hang (librdkafka issue 5511).
            "metadata.recovery.strategy": "none",
            # Offsets that a killed process left in an open transaction must not be waited for.
            "isolation.level": "read_uncommitted" if group else "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
            **QUIET,
        }
    )


def _take(message: Message, records: dict[int, list[Raw]], unfinished: set[int]) -> None:
    error, partition = message.error(), message.partition()
    if error is None and partition is not None:
        records[partition].append(Raw(_bytes(message.key()).decode(), _bytes(message.value()), message.timestamp()[1]))
    elif error is not None and error.code() == KafkaError._PARTITION_EOF and partition is not None:
        unfinished.discard(partition)
    else:
        raise KafkaException(error)


def _bytes(value: bytes | str | None) -> bytes:
    return value if isinstance(value, bytes) else (value or "").encode()
