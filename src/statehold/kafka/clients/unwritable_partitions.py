"""Why records are not taken: librdkafka repeats a produce request in silence, and its timeout names no cause.

Asked after the fact, of the cluster, by a client of its own: where a topic has no leader, or too few replicas in sync,
the answer that the brokers gave is known all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.admin.futures import NO_TIMEOUT, result
from statehold.kafka.admin.tracked_client import TrackedClient
from statehold.kafka.common.error_advice import advice
from statehold.kafka.common.transaction_taint import quiet_logger

#: seconds for each of the two questions
_ASK: Final = 3.0

Place = tuple[str, int]
#: as a place's partition: all of the topic's
ANY: Final = -1


def waiting(statistics: Mapping[str, Any]) -> list[Place]:
    """The partitions whose records a producer still holds, from its statistics."""
    return [
        (topic, place["partition"])
        for topic, told in statistics.get("topics", {}).items()
        for place in told.get("partitions", {}).values()
        if place["partition"] >= 0 and place.get("msgq_cnt", 0) + place.get("xmit_msgq_cnt", 0) > 0
    ]


def why_not(settings: Settings, places: Iterable[Place]) -> str:
    """`; TOPIC[P]: ANSWER: what to change` for the first place that takes nothing; '' where none is found. Blocks."""
    config: dict[str, Any] = {**client.admin(settings), "logger": quiet_logger("unwritable")}
    asker = TrackedClient(config)
    least: dict[str, int] = {}
    try:
        topics = asker.list_topics(timeout=_ASK).topics
        for topic, partition in places:
            for found in topics[topic].partitions.values() if topic in topics else ():
                if partition not in (ANY, found.id):
                    continue
                if found.leader < 0:
                    return _told(topic, found.id, KafkaError.LEADER_NOT_AVAILABLE, "it has no leader")
                if topic not in least:
                    least[topic] = _least(asker, topic)
                if len(found.isrs) < min(least[topic], len(found.replicas)):
                    said = f"{len(found.isrs)} of {len(found.replicas)} replicas in sync, {least[topic]} are asked for"
                    return _told(topic, found.id, KafkaError.NOT_ENOUGH_REPLICAS, said)
    except (KafkaException, KafkaTrouble, KeyError):
        return ""
    return ""


def _told(topic: str, partition: int, code: int, said: str) -> str:
    return f"; {topic}[{partition}]: {KafkaError(code).name()} ({said}){advice(code)}"


def _least(asker: TrackedClient, topic: str) -> int:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = result(asker.describe_configs([resource], request_timeout=NO_TIMEOUT)[resource], seconds=_ASK)
    return int(found["min.insync.replicas"].value)
