"""What a doctor asks of a cluster: brokers, settings, replicas, groups, rights, clocks. Only `clocks` writes.

Every call blocks, with a deadline; raises KafkaTrouble (Misconfigured where a right is missing).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.futures import EARLIEST, LATEST, ask_offsets, require_offset, result
from statehold.kafka.admin.groups import find_group, operations
from statehold.kafka.common.client_log import quiet, quiet_logger
from statehold.kafka.common.error_actions import COORDINATOR_MOVES, code_of, translate
from statehold.kafka.common.retry import call_patiently
from statehold.kafka.survey.facts import Acl, BrokerAddress, BrokerClock, Replicas, Topic
from statehold.ports import ConsumerGroup

#: seconds for one request
_DEADLINE: Final = 10.0
#: longest pause between two requests for offsets while the coordinator moves
_COORDINATOR_PAUSE: Final = 0.5
#: probe records for one clock; the fastest counts
_PROBES: Final = 5


class ClusterSurvey:
    """One thread at a time may use it."""

    def __init__(self, settings: Settings, admin: Admin) -> None:
        self._settings, self._admin = settings, admin
        self._askers: dict[str, Consumer] = {}

    def brokers(self) -> list[BrokerAddress]:
        """Return the brokers from any broker's metadata."""
        try:
            found = self._admin.client.list_topics(timeout=_DEADLINE).brokers
        except KafkaException as error:
            raise translate(error) from error
        return [BrokerAddress(each.id, str(each.host), each.port) for _, each in sorted(found.items())]

    def topic_names(self) -> list[str]:
        """Return the topics that this principal may see."""
        try:
            return sorted(self._admin.client.list_topics(timeout=_DEADLINE).topics)
        except KafkaException as error:
            raise translate(error) from error

    def broker_settings(self, broker: int) -> dict[str, str | None]:
        return self._settings_of(ResourceType.BROKER, str(broker))

    def topic_settings(self, topic: str) -> dict[str, str | None]:
        return self._settings_of(ResourceType.TOPIC, topic)

    def topics(self, names: Sequence[str]) -> dict[str, Topic | None]:
        """Describe topics; None for each that does not exist."""
        asked = self._admin.client.describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, request_timeout=_DEADLINE
        )
        return {name: self._topic(name, future) for name, future in asked.items()}

    def group(self, name: str, topic: str = "") -> ConsumerGroup:
        """Describe a group with the rights on it; members list their partitions of `topic`."""
        return find_group(self._admin.client, name, topic, patience=_DEADLINE, rights=True)

    def ends(self, topic: str, partition: int) -> tuple[int, int, int]:
        """Return log start, last stable offset and high watermark."""
        return (
            self._offset(topic, partition, EARLIEST, IsolationLevel.READ_UNCOMMITTED),
            self._offset(topic, partition, LATEST, IsolationLevel.READ_COMMITTED),
            self._offset(topic, partition, LATEST, IsolationLevel.READ_UNCOMMITTED),
        )

    def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """Return the group's committed offsets, without waiting for open transactions."""
        config = quiet(client.offsets(self._settings, group, isolation="read_uncommitted"), "offsets")
        asker = self._askers.get(group) or self._askers.setdefault(group, Consumer(config))

        def ask() -> list[TopicPartition]:
            try:
                return asker.committed([TopicPartition(topic, each) for each in range(partitions)], _DEADLINE)
            except KafkaException as error:
                raise translate(error) from error

        found = call_patiently(
            ask, _DEADLINE, again=lambda error: code_of(error) in COORDINATOR_MOVES, longest=_COORDINATOR_PAUSE
        )
        return {place.partition: place.offset for place in found if place.error is None and place.offset >= 0}

    def allowed(self) -> frozenset[str]:
        """Return what this principal may do to the cluster; everything if there is no authorizer."""
        asked = self._admin.client.describe_cluster(include_authorized_operations=True, request_timeout=_DEADLINE)
        return operations(result(asked).authorized_operations)

    def acls(self) -> list[Acl]:
        """Return the visible ACLs: none without an authorizer, or without DESCRIBE on the cluster."""
        nothing: Any = None  # for any name, principal and host
        everything = AclBindingFilter(
            ResourceType.ANY,
            nothing,
            ResourcePatternType.ANY,
            nothing,
            nothing,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        found = result(self._admin.client.describe_acls(everything, request_timeout=_DEADLINE))
        return [
            Acl(
                each.restype.name,
                each.name,
                each.resource_pattern_type.name == "PREFIXED",
                each.principal,
                each.operation.name,
                each.permission_type.name,
            )
            for each in found
        ]

    def clocks(self, brokers: Sequence[int], prefix: str, wall: Callable[[], float] = time.time) -> list[BrokerClock]:
        """Compare the brokers' clocks with this machine's, by probe records on a temporary topic.

        Needs the rights to create, write and delete topics whose names begin with `prefix`.
        """
        name = f"{prefix}{uuid.uuid4().hex[:8]}"
        topic = NewTopic(
            name,
            len(brokers),
            replica_assignment=[[broker] for broker in brokers],
            config={"message.timestamp.type": "LogAppendTime", "min.insync.replicas": "1"},
        )
        result(self._admin.client.create_topics([topic], request_timeout=_DEADLINE)[name])
        try:
            config: dict[str, Any] = dict(client.full_producer(self._settings))
            config |= {"linger.ms": 0, "logger": quiet_logger("clock")}
            producer = Producer(config)
            return [_clock(producer, name, index, broker, wall) for index, broker in enumerate(brokers)]
        finally:
            self._admin.client.delete_topics([name], request_timeout=_DEADLINE)[name].exception(_DEADLINE)

    def _settings_of(self, kind: ResourceType, name: str) -> dict[str, str | None]:
        resource = ConfigResource(kind, name)
        asked = self._admin.client.describe_configs([resource], request_timeout=_DEADLINE)
        return {key: entry.value for key, entry in result(asked[resource]).items()}

    def _topic(self, name: str, future: Any) -> Topic | None:
        try:
            found = result(future)
        except KafkaTrouble as error:
            if code_of(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        partitions = tuple(
            Replicas(
                each.id,
                each.leader.id if each.leader is not None else -1,
                tuple(node.id for node in each.replicas),
                tuple(node.id for node in each.isr),
            )
            for each in found.partitions
        )
        return Topic(name, str(found.topic_id), partitions, operations(found.authorized_operations))

    def _offset(self, topic: str, partition: int, spec: Any, isolation: IsolationLevel) -> int:
        asked = ask_offsets(self._admin.client, [(topic, partition)], spec, isolation, _DEADLINE)
        return require_offset(result(asked[topic, partition]).offset)


def _clock(producer: Producer, topic: str, partition: int, broker: int, wall: Callable[[], float]) -> BrokerClock:
    """Return the clock of a broker by the probe with the shortest round trip, because it is the most exact."""
    seen: list[tuple[float, float]] = []

    for _ in range(_PROBES):
        stamps: list[int] = []
        faults: list[KafkaError] = []

        def told_back(
            error: KafkaError | None,
            message: Message,
            stamps: list[int] = stamps,
            faults: list[KafkaError] = faults,
        ) -> None:
            if error is not None:
                faults.append(error)
            else:
                stamps.append(message.timestamp()[1])

        before, started = wall(), time.monotonic()
        producer.produce(topic, b"", partition=partition, on_delivery=told_back)
        producer.flush(_DEADLINE)
        took = time.monotonic() - started
        if faults or not stamps:
            raise KafkaTrouble(f"the probe record to broker {broker} was not written: {faults or 'no answer'}")
        # Add half a millisecond to the stamp and to the uncertainty, because the stamp is cut to milliseconds.
        seen.append((took, stamps[0] / 1000 + 0.0005 - (before + took / 2)))
    took, ahead = min(seen)
    return BrokerClock(broker, ahead, took / 2 + 0.0005)
