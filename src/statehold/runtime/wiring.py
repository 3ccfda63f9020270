"""Creates the workers of a service and connects them to Kafka, the clock, the metrics and the database."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakSet

from statehold.admin.topics import require
from statehold.api.handler import Handler, HandlerFactory
from statehold.balancer.join_diagnosis import JoinDiagnosis
from statehold.balancer.manager import Manager
from statehold.balancer.standby_assignment import standby_partitions
from statehold.balancer.unassigned_partitions import UnassignedPartitions, leaves_unassigned
from statehold.bound.attributes import schemas, sinks_of, table_types
from statehold.bound.handler import new_state
from statehold.bound.policies import retry_topics
from statehold.bound.reference import references
from statehold.bound.sink import Connect
from statehold.bound.topics import class_of
from statehold.common.access_rights import Right
from statehold.common.names import Names
from statehold.common.version import __version__
from statehold.config.settings import Settings
from statehold.disk.disk_state import WriteBehind
from statehold.disk.kinds.disk_tables import disk_tables
from statehold.disk.port import Stores
from statehold.errors import KafkaTrouble, StartError, UsageError
from statehold.health.connectivity import Contact
from statehold.health.death_notes import DeathNotes, state_directory
from statehold.health.group_check import GroupCheck, GroupReading
from statehold.kafka.admin.acl_check import RoleAccess
from statehold.kafka.admin.admin import Admin, TopicFacts
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.kafka.clients.consumer import KafkaGroupConsumer
from statehold.kafka.clients.credential_rotation import CredentialRotation
from statehold.kafka.clients.full_producer import KafkaFullSink
from statehold.kafka.clients.hanging_markers import HiddenRecords
from statehold.kafka.clients.producer import KafkaTransactions
from statehold.kafka.clients.reader import KafkaReader
from statehold.kafka.feeds.control_topic import ControlFeed
from statehold.kafka.feeds.input_feed import InputFeeds
from statehold.kafka.feeds.retry_topic import RetryFeed
from statehold.ports import Access, WorkerReport
from statehold.runtime.introspection import Overview
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Writer, number_of
from statehold.snapshot.restore.estimate import Speeds
from statehold.snapshot.store.base import roots_of
from statehold.telemetry.log_events import Log
from statehold.telemetry.registry import ServiceMetrics
from statehold.worker.common.context import NoReferences, Tools
from statehold.worker.common.memory_guard import Memory
from statehold.worker.common.tracing import Tracing
from statehold.worker.full_snapshots.scrub import Scrub
from statehold.worker.partition import PartitionWorker
from statehold.worker.replicas.reference import References, Sources
from statehold.worker.replicas.standby import PATIENCE, Standbys, StandbyTools

#: Measured restore speed, shared by all services of this process.
_SPEEDS: Final = Speeds()
#: Memory budget, shared by all services of this process.
_MEMORY: Final = Memory()
_OPEN: Final[WeakSet[object]] = WeakSet()


def tracing_of(settings: Settings, names: Names) -> Callable[[int], Tracing | None]:
    """Return the tracing of each partition. :raises StartError: it is on, but OpenTelemetry is not installed."""
    if settings.ops.tracing == "off":
        return lambda partition: None
    try:
        from statehold.worker.common.opentelemetry import Spans
    except ImportError as error:
        raise StartError(f"ops.tracing = on needs an extra: pip install 'statehold[otel]' ({error})") from error
    return lambda partition: Spans(names.group, names.input, partition)


def database_of(kind: type[Handler[Any]], settings: Settings, names: Names) -> Connect | None:
    """Return the connector to the sinks' database; None for a handler without sinks.

    :raises StartError: sink.url is not set, or the extra is not installed.
    """
    sinks = sinks_of(kind)
    if not sinks:
        return None
    if not settings.sink.url:
        raise StartError(f"{kind.__name__} has sinks ({', '.join(sinks)}) without a database. Next: set sink.url")
    try:
        from statehold.worker.sinks.postgres import connect
    except ImportError as error:
        raise StartError(f"a Sink needs an extra: pip install 'statehold[postgres]' ({error})") from error
    return connect(settings.sink, names.group, names.input, settings.service.identity, list(sinks.values()))


class Wired(Protocol):
    """The attributes of a `Service` that the wiring uses."""

    names: Names
    metrics: ServiceMetrics
    handler: HandlerFactory

    @property
    def settings(self) -> Settings: ...


class ServiceWiring:
    """Creates a worker for each partition that the manager is assigned."""

    def __init__(
        self,
        service: Wired,
        admin: Admin,
        facts: dict[str, TopicFacts],
        log: Log,
        contact: Contact,
        overview: Overview,
        rights: Sequence[Right],
    ) -> None:
        self._service, self._admin, self._facts, self._log, self._contact = service, admin, facts, log, contact
        self._overview = overview
        self._access: Access = RoleAccess(service.settings, admin, rights)
        kind = class_of(service.handler)
        self._schemas, self._types, self._roots = schemas(kind), table_types(kind), roots_of(service.settings)
        self._tracing = tracing_of(service.settings, service.names)
        self._database = partial(database_of, class_of(service.handler), service.settings, service.names)
        self._database()  # raises at the start if something is missing
        self._control = ControlFeed(service.settings, service.names, admin, log)
        #: None for a service with one input, whose records the manager delivers.
        self._inputs = InputFeeds(service.settings, service.names, log) if service.names.others else None
        #: None if the handler declares no reference data.
        self.references = self._references()
        self._delayed = {
            topic: RetryFeed(service.settings, service.names, log, topic)
            for topic in retry_topics(class_of(service.handler), service.names)
        }
        self._renewal: CredentialRotation | None = None
        self._state_dir = state_directory(service.settings.service.state_dir)
        #: None if the handler has no table on disk
        self._disk = disk_tables(class_of(service.handler), service.settings, self._stores, WriteBehind())
        #: None without such a table, or with `state.scrub` 0
        self._scrub = self._scrubbing(service.settings.state.scrub)
        #: None without standby replicas.
        self.standbys = self._standbys() if service.settings.group.standbys else None
        overview.standbys = self.standbys
        self.manager: Manager

    def start(self, consumer: KafkaGroupConsumer) -> None:
        """Start the threads for standby replicas, reference data and credential renewal."""
        if self.standbys is not None:
            self.standbys.start()
        if self.references is not None:
            self.references.start()
        if self._scrub is not None:
            self._scrub.start()
        readers = (self._control, self._inputs, *self._delayed.values(), self.standbys, self.references)
        renew = [self._admin.renew, consumer.renew, *(each.renew for each in readers if each is not None)]
        self._renewal = CredentialRotation(self._service.settings, self._log, renew)
        self._renewal.start()

    def close(self) -> None:
        for each in (
            self.standbys,
            self._renewal,
            self.references,
            self._scrub,
            self._control,
            self._inputs,
            *self._delayed.values(),
        ):
            if each is not None:
                each.close()

    def joining(self) -> JoinDiagnosis:
        """Return the diagnosis of a process without partitions."""
        names, group = self._service.names, self._service.settings.group
        reading = GroupReading(partial(self._admin.describe_group, names.input), self._log, time.monotonic)
        session = group.session_seconds if group.protocol == "classic" else None
        return JoinDiagnosis(reading, self._facts[names.input].partitions, session, self._log, time.monotonic)

    def unassigned(self) -> UnassignedPartitions | None:
        """Return what checks the group's assignments; None where every partition gets an owner."""
        names, settings = self._service.names, self._service.settings
        if not leaves_unassigned(settings):
            return None
        check = GroupCheck[frozenset[int]](partial(self._admin.describe_group, names.input), self._log, time.monotonic)
        return UnassignedPartitions(check, self._facts[names.input].partitions, self._log)

    def _references(self) -> References | None:
        service, settings = self._service, self._service.settings
        declared = tuple(references(class_of(service.handler)).values())
        if not declared:
            return None
        facts = self._admin.describe([each.topic for each in declared])
        return References(
            Sources(
                declared=declared,
                partitions={topic: fact.partitions for topic, fact in facts.items() if fact is not None},
                reader=lambda cancelled: CommittedReader(settings, service.names.group, self._admin, cancelled),
                deadline=settings.restore.deadline,
                log=self._log,
                clock=time.monotonic,
            )
        )

    def _standbys(self) -> Standbys:
        service, admin, names = self._service, self._admin, self._service.names
        settings = service.settings
        patient = replace(settings, restore=replace(settings.restore, deadline=PATIENCE))
        return Standbys(
            StandbyTools(
                locate=lambda partition: self._place(partition, require(admin, names, ())),
                new_state=lambda: new_state(
                    class_of(service.handler),
                    traced=settings.service.mode == "development",
                    track_delta=settings.snapshot.delta_interval != "off",
                ),
                disk=self._disk,
                reader=lambda cancelled: CommittedReader(patient, names.group, admin, cancelled),
                chosen=self._chosen,
                assigned=lambda: self.manager.assigned,
                memory_limit=settings.restore.memory_limit,
                memory=_MEMORY,
                increment=names.changelog,
                metrics=service.metrics.service,
                log=self._log,
                clock=time.monotonic,
            )
        )

    def _scrubbing(self, milliseconds: int) -> Scrub | None:
        if self._disk is None or not milliseconds:
            return None
        return Scrub(milliseconds / 1000, time.monotonic, time.time)

    def _chosen(self) -> frozenset[int] | None:
        """Return the partitions whose standby replicas this process keeps; None while the group is unknown."""
        names, member = self._service.names, self.manager.membership.member_id
        try:
            view = self._admin.describe_group(names.input)
        except KafkaTrouble as error:
            self._log.debug("kafka_retry", doing="describe the group", cause=str(error))
            return None
        found = standby_partitions(
            view, member, self._facts[names.input].partitions, self._service.settings.group.standbys
        )
        if found is None:
            self.manager.request_membership_refresh()  # a member without partitions gets no callback for its new name
        return found

    def worker(self, partition: int, report: Callable[[WorkerReport], None]) -> PartitionWorker:
        self._contact.joins(partition)
        return self._overview.note(PartitionWorker(self._tools(partition, partial(self._reported, report))))

    def _reported(self, report: Callable[[WorkerReport], None], reported: WorkerReport) -> None:
        if reported.kind == "closed":
            self._contact.leaves(reported.partition)
        report(reported)

    def _tools(self, partition: int, report: Callable[[WorkerReport], None]) -> Tools:
        service, admin, names, contact = self._service, self._admin, self._service.names, self._contact
        settings, log = service.settings, self._log.bind(partition=partition)
        ours, inputs = (*names.inputs, names.changelog, names.snapshot), self._inputs
        place = self._place(partition, self._facts)
        outputs = {topic: facts.partitions for topic, facts in self._facts.items() if topic not in ours}
        outputs |= {topic: self._facts[topic].partitions for topic in names.rekeys}
        hidden = HiddenRecords(settings, admin, names, partition, outputs, number_of, log)
        return Tools(
            place=place,
            inputs=None if inputs is None else partial(inputs.read, partition),
            locate=lambda: self._place(partition, require(admin, names, ())),
            settings=settings,
            handler=service.handler,
            producer=lambda: KafkaTransactions(
                settings, names, partition, log, time.monotonic, contact, [*outputs], hidden
            ),
            reader=lambda cancelled: KafkaReader(settings, names.group, admin, cancelled, time.monotonic, contact),
            full_sink=lambda: KafkaFullSink(settings, names.snapshot, partition),
            offsets=admin,
            membership=lambda: self.manager.membership,
            report=report,
            log=log,
            metrics=service.metrics.partition(partition),
            clock=time.monotonic,
            wall=time.time,
            output_partitions=lambda topic: self._facts[topic].partitions,
            speeds=_SPEEDS,
            deaths=self._deaths(place, log),
            tracing=self._tracing(partition),
            memory=_MEMORY,
            open_transactions=_OPEN,
            access=self._access,
            standby=self.standbys,
            references=self.references or NoReferences(),
            disk=self._disk,
            scrub=self._scrub,
            delayed=lambda topic: self._delayed[topic].lane(partition),
            database=self._database(),
            control=partial(self._control.lane, partition),
            control_exists=self._control.exists,
        )

    def _stores(self) -> Stores:
        """:raises UsageError: the extra is not installed, or there is no directory."""
        settings = self._service.settings.state
        try:
            from statehold.disk.directory import LocalStores, root_of  # here, because only tables on disk need lmdb
        except ImportError as error:
            raise UsageError(f"tables on disk need lmdb: {error}. Next: `pip install 'statehold[disk]'`") from error
        root = root_of(settings, self._state_dir)
        if root is None:
            raise UsageError("tables on disk need a directory, and service.state_dir is off. Next: set state.dir")
        return LocalStores(
            root,
            settings.disk_limit,
            lambda path, cause: self._log.warning("local_store_dropped", path=path, cause=cause),
        )

    def _deaths(self, place: Place, log: Log) -> DeathNotes | None:
        if self._state_dir is None:
            return None
        names = place.names
        scope = f"{place.topic_ids[names.input]} {self._service.settings.service.code_version}"
        return DeathNotes(
            self._state_dir,
            f"{names.group}.{names.input}.{place.partition}",
            scope,
            lambda path, error: log.warning("death_notes_failed", path=path, cause=str(error)),
        )

    def _place(self, partition: int, facts: dict[str, TopicFacts]) -> Place:
        names = self._service.names
        own = (*names.inputs, names.changelog, names.snapshot)
        return Place(
            names=names,
            partition=partition,
            partitions=facts[names.input].partitions,
            topic_ids={topic: facts[topic].id for topic in own},
            writer=Writer(
                instance=self._service.settings.service.identity,
                host=socket.gethostname(),
                pid=os.getpid(),
                version=__version__,
                schema=1 + sum(version - 1 for version in self._schemas.values()),
                reads=frame.NEWEST,
                code=self._service.settings.service.code_version,
            ),
            schemas=self._schemas,
            roots=self._roots,
            types=self._types,
        )
