"""One life of a simulated process: the manager, workers and replicas of a service, wired as `ServiceWiring` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeVar

from statehold.api.handler import Handler, HandlerFactory
from statehold.balancer.manager import Manager
from statehold.balancer.standby_assignment import standby_partitions
from statehold.balancer.unassigned_partitions import UnassignedPartitions, leaves_unassigned
from statehold.bound.attributes import schemas, sinks_of, table_types
from statehold.bound.handler import new_state
from statehold.bound.reference import references
from statehold.bound.sink import Connect, DatabaseTrouble, Rows, Session, SinkPosition
from statehold.bound.topics import class_of, output_topics
from statehold.common.names import Names
from statehold.common.threads import Background
from statehold.config.settings import Settings
from statehold.disk.kinds.disk_tables import disk_tables
from statehold.errors import KafkaTrouble
from statehold.health.group_check import GroupCheck
from statehold.ports import ConsumerGroup, WorkerReport
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Writer
from statehold.snapshot.restore.estimate import Speeds
from statehold.snapshot.store.base import roots_of
from statehold.telemetry.log_events import Log
from statehold.telemetry.registry import ServiceMetrics
from statehold.testing.kafka.clients.clients import Clients
from statehold.testing.kafka.cluster import SimulatedKafka
from statehold.testing.memory.database import MemoryDatabase
from statehold.testing.simulation.calls import ended, simulated
from statehold.testing.simulation.disks import SimulatedDisk
from statehold.testing.simulation.scheduler import TaskHost, TaskScheduler, TaskThreads
from statehold.worker.common.context import NoReferences, Tools
from statehold.worker.common.lifecycle import Event, Phase
from statehold.worker.common.memory_guard import Memory
from statehold.worker.participants.effect_runner import EffectRunner
from statehold.worker.partition import PartitionWorker
from statehold.worker.replicas.reference import References, Sources
from statehold.worker.replicas.standby import Standbys, StandbyTools

T = TypeVar("T")
#: called with the process, the name of the event and its fields
LogEvents = Callable[["ProcessLife", str, dict[str, Any]], None]


class Application:
    """The service that all processes run, and what they share outside of Kafka."""

    def __init__(
        self,
        handler: HandlerFactory,
        names: Names,
        partitions: int,
        settings: Settings,
    ) -> None:
        self.handler, self.names, self.partitions, self.settings = handler, names, partitions, settings
        self.kind: type[Handler[Any]] = class_of(handler)
        self.schemas, self.types = schemas(self.kind), table_types(self.kind)
        self.all_outputs = output_topics(self.kind, names)
        #: the database of the sinks
        self.database = MemoryDatabase()
        #: the local disks, by process
        self.disks: dict[str, SimulatedDisk] = {}
        self.has_sinks = bool(sinks_of(self.kind))
        self.metrics = _metrics(names.group)

    def release(self, handler: HandlerFactory) -> Application:
        """Return another release of the service, which shares what is outside of its processes."""
        made = Application(handler, self.names, self.partitions, self.settings)
        made.database, made.disks = self.database, self.disks
        return made

    def disk_of(self, process: str, scheduler: TaskScheduler) -> SimulatedDisk:
        """Return the disk of a process, which each life of it finds again."""
        return self.disks.setdefault(process, SimulatedDisk(scheduler))

    def place(self, kafka: SimulatedKafka, partition: int, instance: str) -> Place:
        """Return the identity of a partition as the brokers' topics are now."""
        names = self.names
        topics = (*names.inputs, names.changelog, names.snapshot)
        ids = {topic: kafka.topics[topic].id for topic in topics if topic in kafka.topics}
        writer = Writer(instance=instance, reads=frame.NEWEST)
        partitions = kafka.partitions(names.input) or self.partitions
        return Place(names, partition, partitions, ids, writer, self.schemas, roots_of(self.settings), self.types)


@lru_cache
def _metrics(group: str) -> ServiceMetrics:
    """Return the metrics of all runs of a service, because they take long to make and a simulation shows none."""
    return ServiceMetrics(group)


class _EventLog:
    """Takes the log events of one process: the logger of a `Log`."""

    def __init__(self, process: ProcessLife, events: LogEvents, bound: dict[str, Any]) -> None:
        self._process, self._events, self._bound = process, events, bound

    def bind(self, **fields: object) -> _EventLog:
        return _EventLog(self._process, self._events, {**self._bound, **fields})

    def _note(self, event: str, **fields: object) -> None:
        self._events(self._process, event, {**self._bound, **fields})

    debug = info = warning = error = _note


class _ObservedWorker(PartitionWorker):
    """Reports each edge of its life cycle."""

    def __init__(self, tools: Tools, on_edge: Callable[[Phase, Event], None]) -> None:
        super().__init__(tools)
        self._on_edge = on_edge

    def _go(self, event: Event, cause: BaseException | None = None) -> None:
        self._on_edge(self.phase, event)
        super()._go(event, cause)


class ProcessLife(TaskHost):
    """A process from its start to its end or crash. `name` is unique: a new life of it has another number."""

    def __init__(
        self,
        name: str,
        application: Application,
        kafka: SimulatedKafka,
        scheduler: TaskScheduler,
        disk: SimulatedDisk,
        events: LogEvents,
        on_edge: Callable[[Phase, Event], None] = lambda phase, event: None,
    ) -> None:
        super().__init__(name)
        self._on_edge = on_edge
        self.application, self.kafka, self.scheduler = application, kafka, scheduler
        self.settings, self.names = _of_member(application.settings, name), application.names
        self.threads = TaskThreads(scheduler, self)
        self.clients = Clients(kafka, name, self.names, self.settings)
        self.admin = self.clients.admin()
        self.log = Log(_EventLog(self, events, {}))
        self.speeds = Speeds()
        self.memory = Memory()
        self.disk = disk
        disk.begin()
        self.workers: list[PartitionWorker] = []
        self.ended = False
        self.failure: BaseException | None = None
        self.manager = Manager(
            self.clients.consumer(),
            self._worker,
            self.settings,
            application.metrics,
            self.log,
            kafka.clock,
            None,
            self.threads,
            self._unassigned(),
        )
        self.standbys = self._standbys() if self.settings.group.standbys else None
        self.references = self._references()
        scheduler.spawn(self, "manager", self._run)

    @property
    def running(self) -> bool:
        return not self.ended and not self.crashed

    @property
    def frozen(self) -> bool:
        return self.frozen_until > self.kafka.clock()

    @property
    def hindered(self) -> bool:
        """It stands still, or has no network."""
        return self.frozen or self.clients.is_cut

    def crash(self) -> None:
        """Do SIGKILL."""
        self.crashed = True
        self.clients.crash()
        self.disk.crash()

    def freeze(self, seconds: float) -> None:
        """Do SIGSTOP, and SIGCONT later."""
        self.frozen_until = max(self.frozen_until, self.kafka.clock() + seconds)
        self.clients.freeze()
        self.kafka.timers.at(self.frozen_until, self._thaw)

    def _thaw(self) -> None:
        if not self.frozen and self.clients.frozen and not self.crashed:
            self.clients.thaw()

    def cut(self, seconds: float) -> None:
        """Lose the network for a while."""
        self.clients.cut()
        self.kafka.timers.after(seconds, self.clients.heal)

    def _run(self) -> None:
        try:
            if self.standbys is not None:
                self.standbys.start()
            if self.references is not None:
                self.references.start()
            self.manager.run()
            self.failure = self.manager.failure
        except KafkaTrouble as error:
            self.failure = error
        finally:
            if self.standbys is not None:
                self.standbys.close()
            if self.references is not None:
                self.references.close()
            self.ended = True

    def _worker(self, partition: int, report: Callable[[WorkerReport], None]) -> PartitionWorker:
        worker = _ObservedWorker(self._tools(partition, report), self._on_edge)
        self.workers = [each for each in self.workers if not each.closed.is_set()]
        self.workers.append(worker)
        return worker

    def _tools(self, partition: int, report: Callable[[WorkerReport], None]) -> Tools:
        application, clients, kafka, names = self.application, self.clients, self.kafka, self.names
        background = partial(_background, self.threads)
        return Tools(
            place=application.place(kafka, partition, self.name),
            locate=lambda: application.place(kafka, partition, self.name),
            settings=self.settings,
            handler=application.handler,
            producer=lambda: clients.transactions(partition),
            reader=clients.reader,
            full_sink=lambda: clients.full_sink(partition),
            offsets=self.admin,
            membership=lambda: self.manager.membership,
            report=report,
            log=self.log.bind(partition=partition),
            metrics=application.metrics.partition(partition),
            clock=kafka.clock,
            wall=kafka.clock.wall,
            output_partitions=kafka.partitions,
            control=partial(clients.control, partition),
            inputs=partial(clients.inputs().read, partition) if names.others else None,
            delayed=lambda topic: clients.delayed(topic, partition),
            database=self._connector() if application.has_sinks else None,
            speeds=self.speeds,
            memory=self.memory,
            standby=self.standbys,
            references=self.references or NoReferences(),
            disk=disk_tables(application.kind, self.settings, lambda: self.disk, self.disk.behind()),
            effects=partial(EffectRunner, start=ended),
            calls=simulated(self.threads, self.scheduler.reach, partition),
            run_commit=background,
            run_background=background,
            threads=self.threads,
        )

    def _connector(self) -> Connect:
        connect = self.application.database.connector()

        def connected(partition: int, ends: Callable[[], bool] = bool) -> Session:
            return _Session(connect(partition, ends), self)

        return connected

    def _unassigned(self) -> UnassignedPartitions | None:
        application, kafka = self.application, self.kafka

        def look() -> ConsumerGroup:
            group = kafka.group(self.names.group)
            return group.describe() if group is not None else ConsumerGroup("dead", ())

        if not leaves_unassigned(self.settings):
            return None
        check = GroupCheck[frozenset[int]](look, self.log, kafka.clock, partial(_background, self.threads))
        return UnassignedPartitions(check, application.partitions, self.log)

    def _standbys(self) -> Standbys:
        kind, settings = self.application.kind, self.settings
        return Standbys(
            StandbyTools(
                locate=lambda partition: self.application.place(self.kafka, partition, self.name),
                new_state=lambda: new_state(
                    kind,
                    traced=settings.service.mode == "development",
                    track_delta=settings.snapshot.delta_interval != "off",
                ),
                disk=disk_tables(kind, settings, lambda: self.disk, self.disk.behind()),
                reader=self.clients.following_reader,
                chosen=self._chosen,
                assigned=lambda: self.manager.assigned,
                memory_limit="off",
                memory=self.memory,
                increment=self.names.changelog,
                metrics=self.application.metrics.service,
                log=self.log,
                clock=self.kafka.clock,
                threads=self.threads,
            )
        )

    def _references(self) -> References | None:
        declared = tuple(references(self.application.kind).values())
        if not declared:
            return None
        return References(
            Sources(
                declared=declared,
                partitions={each.topic: self.kafka.partitions(each.topic) for each in declared},
                reader=self.clients.following_reader,
                deadline=self.settings.restore.deadline,
                log=self.log,
                clock=self.kafka.clock,
                threads=self.threads,
            )
        )

    def _chosen(self) -> frozenset[int] | None:
        group = self.kafka.group(self.names.group)
        if group is None:
            return None
        member = self.manager.membership.member_id
        found = standby_partitions(group.describe(), member, self.application.partitions, self.settings.group.standbys)
        if found is None:
            self.manager.request_membership_refresh()
        return found


def _of_member(settings: Settings, name: str) -> Settings:
    """Give each life of a static member the same name."""
    if settings.group.membership != "static":
        return settings
    return replace(settings, service=replace(settings.service, instance=name.rstrip("0123456789")))


def _background(threads: TaskThreads, call: Callable[[], None], name: str) -> Background:
    return Background(call, name, threads)


class _Session:
    """`bound.sink.Session` of a simulated process: each request takes time, and may fail before or after it."""

    def __init__(self, session: Session, life: ProcessLife) -> None:
        self._session, self._life = session, life

    def take(self, *, again: bool) -> SinkPosition | None:
        return self._request(lambda: self._session.take(again=again))

    def commit(self, held: SinkPosition, position: int, note: bytes, rows: Sequence[Rows]) -> None:
        self._request(lambda: self._session.commit(held, position, note, rows))

    def close(self) -> None:
        self._session.close()

    def _request(self, effect: Callable[[], T]) -> T:
        action = self._life.scheduler.reach("sink")
        fails = action is not None and action.argument == "database"
        if action is not None and action.kind == "fail" and fails:
            raise DatabaseTrouble("the database does not answer")
        answer = effect()
        if action is not None and action.kind == "fail-after" and fails:
            raise DatabaseTrouble("the database's answer was lost")
        return answer
