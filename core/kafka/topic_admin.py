"""Creating topics and looking at their settings: what `holdfast topics` needs of the AdminClient."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec, ResourceType

from holdfast.errors import KafkaTrouble
from holdfast.kafka.admin import EARLIEST, LATEST, Admin, result
from holdfast.kafka.errors import describe, kafka_error

#: a new broker's first group waits for its coordinator, up to some seconds
_LOADING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
_COORDINATOR_WAIT, _COORDINATOR_PAUSE = 30.0, 0.1


class TopicAdmin:
    """Blocks, each call with a deadline; raises KafkaTrouble."""

    def __init__(self, admin: Admin, group: str) -> None:
        self._admin, self._client, self._group = admin, admin.client, group

    def create(self, name: str, partitions: int, replication: int, settings: Mapping[str, str]) -> bool:
        """False when the topic exists already."""
        topic = NewTopic(name, partitions, replication, config=dict(settings))
        try:
            result(self._client.create_topics([topic])[name])
        except KafkaTrouble as error:
            inner = kafka_error(error.__cause__) if error.__cause__ else None
            if inner is not None and inner.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    def settings(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = result(self._client.describe_configs([resource])[resource])
        return {name: entry.value for name, entry in entries.items()}

    def offset(self, topic: str, partition: int, start_at: str | int) -> int:
        """The offset of `beginning`, `end`, or a time in milliseconds since 1970; -1 after the last record."""
        spec: Any
        match start_at:
            case "beginning":
                spec = EARLIEST
            case "end":
                spec = LATEST
            case _:
                spec = OffsetSpec.for_timestamp(int(start_at))
        place = TopicPartition(topic, partition)
        offset: int = result(self._client.list_offsets({place: spec})[place]).offset
        return offset

    def set_group_offsets(self, topic: str, positions: Mapping[int, int]) -> str:
        """Set the group's offsets; why it was refused, or ''. A coordinator that is still loading is asked again."""
        places = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
        asked = ConsumerGroupTopicPartitions(self._group, places)
        deadline = time.monotonic() + _COORDINATOR_WAIT
        while True:
            try:
                answer = result(self._client.alter_consumer_group_offsets([asked])[self._group])
            except KafkaTrouble as error:
                return str(error)
            refused = [place.error for place in answer.topic_partitions if place.error is not None]
            if not any(error.code() in _LOADING for error in refused) or time.monotonic() > deadline:
                return "; ".join(dict.fromkeys(map(describe, refused)))
            time.sleep(_COORDINATOR_PAUSE)
