"""The facts that checks share: one service on one cluster, each fact requested once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property
from typing import Any

from statehold.api.handler import HandlerFactory
from statehold.bound.attributes import sinks_of
from statehold.bound.sink import PartitionSink
from statehold.bound.topics import class_of, output_topics, reference_topics
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import Misconfigured, StateholdError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.kafka.survey import api_versions
from statehold.kafka.survey.api_versions import ApiVersions
from statehold.kafka.survey.cluster import ClusterSurvey
from statehold.kafka.survey.facts import BrokerAddress, Topic
from statehold.ops.remote import local_services
from statehold.ops.remote.remote_status import reach
from statehold.ports import ConsumerGroup
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.inspect.survey import Survey, survey

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


class NotAsked(StateholdError):
    """A check cannot run; the text names what is missing."""


class Case:
    """Every property blocks the first time, and raises the error of its request.

    Without `names` only the cluster is checked. `probes` allows checks that write (to their own topic).
    `references` are the topics of its reference data. Without a known handler `sinks` is absent, and they are empty.
    """

    def __init__(
        self,
        settings: Settings,
        names: Names | None,
        outputs: Sequence[str] = (),
        *,
        probes: bool = True,
        deep: bool = False,
        sinks: Iterable[PartitionSink[Any]] | None = None,
        references: Sequence[str] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.settings, self.given, self.outputs = settings, names, tuple(dict.fromkeys(outputs))
        self.references = tuple(dict.fromkeys(references))
        self.probes, self.deep, self.wall = probes, deep, wall
        self.sinks = None if sinks is None else list(sinks)

    @classmethod
    def of_handler(cls, settings: Settings, names: Names, handler: HandlerFactory) -> Case:
        """Return the case of a service in whose process the checks run, without those that write."""
        sinks, references = sinks_of(class_of(handler)).values(), reference_topics(handler)
        return cls(settings, names, output_topics(handler, names), probes=False, sinks=sinks, references=references)

    @cached_property
    def admin(self) -> Admin:
        """:raises Misconfigured: a file of `kafka.security` cannot be read, or a setting is invalid."""
        return Admin(self.settings, self.given.group if self.given is not None else "statehold-doctor")

    @cached_property
    def cluster(self) -> ClusterSurvey:
        return ClusterSurvey(self.settings, self.admin)

    @cached_property
    def broker_settings(self) -> Callable[[int], dict[str, str | None]]:
        return cache(self.cluster.broker_settings)

    @cached_property
    def topic_settings(self) -> Callable[[str], dict[str, str | None]]:
        return cache(self.cluster.topic_settings)

    @property
    def names(self) -> Names:
        """:raises NotAsked: only the cluster is known."""
        if self.given is None:
            raise NotAsked("no service was named: `statehold doctor MODULE:SERVICE`, or --name and --input")
        return self.given

    @property
    def strict(self) -> bool:
        """Return whether a weakness that is acceptable in development fails."""
        return self.settings.service.mode == "production"

    @cached_property
    def brokers(self) -> list[BrokerAddress]:
        return self.cluster.brokers()

    @cached_property
    def spoken(self) -> dict[str, ApiVersions | str]:
        """`broker 1 at host:port` -> what it said, or why it said nothing."""
        tls, patience = api_versions.tls_of(self.settings), self.settings.kafka.connection_timeout
        found: dict[str, ApiVersions | str] = {}
        for each in self.brokers:
            name = f"broker {each.id} at {each.host}:{each.port}"
            try:
                found[name] = api_versions.ask(each.host, each.port, tls, patience)
            except (OSError, ValueError) as error:
                found[name] = str(error) or type(error).__name__
        return found

    def setting(self, key: str) -> dict[int, str]:
        """Return a broker setting of each broker.

        :raises NotAsked: the cluster does not show it, as managed ones do not.
        """
        found = {each.id: self.broker_settings(each.id).get(key) for each in self.brokers}
        shown = {broker: value for broker, value in found.items() if value is not None}
        if len(shown) < len(found) or not found:
            raise NotAsked(f"the brokers do not show {key}")
        return shown

    def topic_setting(self, topic: str, key: str) -> str:
        """:raises NotAsked: the cluster does not show it."""
        value = self.topic_settings(topic).get(key)
        if value is None:
            raise NotAsked(f"the brokers do not show {key} of {topic}")
        return value

    @cached_property
    def topics(self) -> dict[str, Topic | None]:
        """Return the service's topics, its reference topics and the internal ones; None for a missing one."""
        own = []
        if self.given is not None:
            names = self.given
            own = [*names.inputs, names.changelog, names.snapshot, names.control, *self.outputs, *self.references]
        return self.cluster.topics(list(dict.fromkeys(own))) | self._internal()

    def _internal(self) -> dict[str, Topic | None]:
        """Return the brokers' internal topics, which most principals may not describe."""
        try:
            return self.cluster.topics([OFFSETS, TRANSACTIONS])
        except Misconfigured:
            return {}

    def topic(self, name: str) -> Topic:
        """:raises NotAsked: it is missing, which the check `topics` reports."""
        found = self.topics[name]
        if found is None:
            raise NotAsked(f"{name} is missing")
        return found

    @property
    def ours(self) -> list[str]:
        """Return the existing changelog, snapshot and other topics that statehold owns."""
        wanted = [self.names.changelog, self.names.snapshot, self.names.control]
        return [name for name in wanted if self.topics[name] is not None]

    @property
    def data(self) -> list[str]:
        """Return the existing topics of the service, and those of its reference data."""
        others = (*self.names.inputs, *self.outputs, *self.references)
        return list(dict.fromkeys([*(name for name in others if self.topics[name] is not None), *self.ours]))

    @cached_property
    def group(self) -> ConsumerGroup:
        return self.cluster.group(self.names.group)

    @cached_property
    def statuses(self) -> list[dict[str, Any]]:
        """Return the status of each instance that answers, here and by the ops servers that members advertise."""
        group = self.names.group
        answers = reach(self.settings, group, [each for each in self.group.members if each.url])
        asked = [each.status for each in local_services.of_service(group)] + [each.status for each in answers]
        return [each for each in asked if each is not None]

    @cached_property
    def reader(self) -> CommittedReader:
        return CommittedReader(self.settings, self.names.group, self.admin)

    @cached_property
    def places(self) -> list[Place]:
        """Return each partition, as the topics are now."""
        names = self.names
        facts = {name: self.topic(name) for name in (*names.inputs, names.changelog, names.snapshot)}
        ids = {name: fact.id for name, fact in facts.items()}
        count = len(facts[names.input].partitions)
        kept = min(len(facts[names.changelog].partitions), len(facts[names.snapshot].partitions), count)
        return [Place(names, partition, count, ids) for partition in range(kept)]

    @cached_property
    def surveys(self) -> list[Survey]:
        """Return a survey of each partition."""
        return [survey(self.reader, place) for place in self.places]

    def close(self) -> None:
        if "reader" in self.__dict__:
            self.reader.close()

    # Commands that fix

    def kafka(self, tool: str, arguments: str) -> str:
        """Return a command line of a Kafka tool."""
        return f"{tool} --bootstrap-server {self.settings.kafka.bootstrap_servers.split(',')[0].strip()} {arguments}"

    def set_topic(self, topic: str, key: str, value: object) -> str:
        arguments = f"--alter --entity-type topics --entity-name {topic} --add-config {key}={value}"
        return self.kafka("kafka-configs", arguments)

    def set_brokers(self, key: str, value: object) -> str:
        """Return how to change a broker setting; those read at the start belong in each broker's file."""
        return f"set {key}={value} in each broker's properties, and restart them one by one (deploy/kafka/)"
