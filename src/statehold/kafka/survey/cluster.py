"""What a doctor asks of a cluster: brokers, settings, replicas, groups, rights, clocks. Only `clocks` writes.

Every call blocks, with a deadline; raises KafkaTrouble (Misconfigured where a right is missing).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
)
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ClusterMetadata,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.futures import ATTEMPT, EARLIEST, LATEST, NEWEST, ask_offsets, require_offset, result
from statehold.kafka.admin.groups import find_group, operations
from statehold.kafka.common.client_log import quiet_logger
from statehold.kafka.common.error_actions import code_of, translate
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

    def brokers(self) -> list[BrokerAddress]:
        """Return the brokers from any broker's metadata."""
        found = self._listed().brokers
        return [BrokerAddress(each.id, str(each.host), each.port) for _, each in sorted(found.items())]

    def topic_names(self) -> list[str]:
        """Return the topics that this principal may see."""
        return sorted(self._listed().topics)

    def broker_settings(self, broker: int) -> dict[str, str | None]:
        return self._settings_of(ResourceType.BROKER, str(broker))

    def topic_settings(self, topic: str) -> dict[str, str | None]:
        return self._settings_of(ResourceType.TOPIC, topic)

    def topics(self, names: Sequence[str]) -> dict[str, Topic | None]:
        """Describe topics; None for each that does not exist."""
        asked = self._admin.client.describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, request_timeout=_DEADLINE
        )
        with self._asking():
            return {name: self._topic(name, future) for name, future in asked.items()}

    def group(self, name: str, topic: str = "") -> ConsumerGroup:
        """Describe a group with the rights on it; members list their partitions of `topic`."""
        with self._asking():
            return find_group(self._admin.client, name, topic, patience=_DEADLINE, rights=True)

    def ends(self, topic: str, partition: int) -> tuple[int, int, int]:
        """Return log start, last stable offset and high watermark."""
        return (
            self._offset(topic, partition, EARLIEST, IsolationLevel.READ_UNCOMMITTED),
            self._offset(topic, partition, LATEST, IsolationLevel.READ_COMMITTED),
            self._offset(topic, partition, LATEST, IsolationLevel.READ_UNCOMMITTED),
        )

    def newest(self, topic: str, partition: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the record with the highest timestamp; None for an empty partition.

        :raises KafkaTrouble: the brokers are older than 3.0.
        """
        isolation = IsolationLevel.READ_UNCOMMITTED
        client, place = self._admin.client, (topic, partition)
        found = call_patiently(
            lambda: result(ask_offsets(client, [place], NEWEST, isolation, ATTEMPT)[place]), _DEADLINE
        )
        return None if found.offset < 0 else (found.offset, found.timestamp)

    def committed(self, topic: str, partitions: int) -> dict[int, int]:
        """Return the committed offsets of this client's group, without waiting for open transactions."""
        asked = range(partitions)
        return call_patiently(lambda: self._admin.positions(topic, asked), _DEADLINE, longest=_COORDINATOR_PAUSE)

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

    def _listed(self) -> ClusterMetadata:
        with self._asking():
            try:
                return self._admin.client.list_topics(timeout=_DEADLINE)
            except KafkaException as error:
                raise translate(error) from error

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """:raises Misconfigured: the request failed because the brokers reject the login, or TLS fails."""
        try:
            yield
        except KafkaTrouble as error:
            self._admin.require_login(self._admin.client, error)
            raise

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
        delivered: list[tuple[KafkaError | None, Message]] = []
        before, started = wall(), time.monotonic()
        producer.produce(topic, b"", partition=partition, on_delivery=lambda *report, to=delivered: to.append(report))
        producer.flush(_DEADLINE)
        took = time.monotonic() - started
        if not delivered or delivered[0][0] is not None:
            why = delivered[0][0] if delivered else "no answer"
            raise KafkaTrouble(f"the probe record to broker {broker} was not written: {why}")
        # Add half a millisecond to the stamp and to the uncertainty, because the stamp is cut to milliseconds.
        seen.append((took, delivered[0][1].timestamp()[1] / 1000 + 0.0005 - (before + took / 2)))
    took, ahead = min(seen)
    return BrokerClock(broker, ahead, took / 2 + 0.0005)
