"""Finds out why brokers take no records, because librdkafka retries silently and its timeout names no cause.

A client of its own asks the cluster afterwards. A partition without a leader, or with too few replicas in sync,
explains the answers that the brokers gave.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType

from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.admin.futures import NO_TIMEOUT, result
from statehold.kafka.admin.tracked_client import TrackedClient
from statehold.kafka.common.client_log import quiet
from statehold.kafka.common.error_advice import advice

#: seconds for each of the two requests
_ASK_TIMEOUT: Final = 3.0

Place = tuple[str, int]
#: partition number that stands for all partitions of a topic
ANY: Final = -1


def unwritable_cause(settings: Settings, places: Iterable[Place]) -> str:
    """Return `; TOPIC[P]: ERROR: what to change` for the first unwritable partition; '' if none is found. Blocks.

    A missing topic comes first: librdkafka then reports the records of the transaction's other topics as timed out.
    """
    places = list(places)
    config = quiet(client.admin(settings), "unwritable")
    asker = TrackedClient(config)
    least: dict[str, int] = {}
    try:
        topics = asker.list_topics(timeout=_ASK_TIMEOUT).topics
        if missing := [topic for topic, _ in places if topic not in topics]:
            return f"; {missing[0]}: the brokers do not list the topic: was it deleted?"
        for topic, partition in places:
            for found in topics[topic].partitions.values():
                if partition not in (ANY, found.id):
                    continue
                if found.leader < 0:
                    return _sentence(topic, found.id, KafkaError.LEADER_NOT_AVAILABLE, "it has no leader")
                if topic not in least:
                    least[topic] = _least(asker, topic)
                if len(found.isrs) < min(least[topic], len(found.replicas)):
                    said = f"{len(found.isrs)} of {len(found.replicas)} replicas in sync, {least[topic]} needed"
                    return _sentence(topic, found.id, KafkaError.NOT_ENOUGH_REPLICAS, said)
    except (KafkaException, KafkaTrouble, KeyError):
        return ""
    return ""


def _sentence(topic: str, partition: int, code: int, said: str) -> str:
    return f"; {topic}[{partition}]: {KafkaError(code).name()} ({said}){advice(code)}"


def _least(asker: TrackedClient, topic: str) -> int:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = result(asker.describe_configs([resource], request_timeout=NO_TIMEOUT)[resource], seconds=_ASK_TIMEOUT)
    return int(found["min.insync.replicas"].value)
