"""Creates topics and reads their settings and offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType

from statehold.errors import KafkaTrouble, Misconfigured
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.futures import ATTEMPT, EARLIEST, LATEST, NO_TIMEOUT, require_offset, result
from statehold.kafka.common.error_actions import about, code_of, translate


class TopicAdmin:
    """Every call blocks, with a deadline, and raises KafkaTrouble."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    @property
    def _client(self) -> AdminClient:
        """The present client, because it changes with the login, or when it has forgotten its brokers."""
        return self._admin.client

    def listed(self) -> list[str]:
        """Return the names of all topics that this login may see."""
        try:
            return list(self._client.list_topics(timeout=ATTEMPT).topics)
        except KafkaException as error:
            raise translate(error) from error

    def create(self, name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> bool:
        """Create a topic. Return False if it exists already."""
        topic = NewTopic(name, partitions, replication, config=dict(settings))
        try:
            result(self._client.create_topics([topic], request_timeout=NO_TIMEOUT)[name])
        except KafkaTrouble as error:
            if code_of(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    def grow(self, name: str, partitions: int) -> None:
        """Increase the number of partitions of a topic to `partitions`."""
        result(self._client.create_partitions([NewPartitions(name, partitions)], request_timeout=NO_TIMEOUT)[name])

    def settings(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            entries = result(self._client.describe_configs([resource], request_timeout=NO_TIMEOUT)[resource])
        except Misconfigured as error:
            raise about(topic, error) from error.__cause__
        return {name: entry.value for name, entry in entries.items()}

    def offset(self, topic: str, partition: int, start_at: str | int) -> int:
        """Return the offset of `beginning`, `end`, or a time in milliseconds since 1970; -1 after the last record."""
        spec: Any
        match start_at:
            case "beginning":
                spec = EARLIEST
            case "end":
                spec = LATEST
            case _:
                spec = OffsetSpec.for_timestamp(int(start_at))
        place = TopicPartition(topic, partition)
        offset: int = result(self._client.list_offsets({place: spec}, request_timeout=ATTEMPT)[place]).offset
        return offset if offset == -1 and start_at not in ("beginning", "end") else require_offset(offset)
