"""Wire workers to the cluster in memory, as `Service` does to a real one: names, tools, the first start."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import count
from typing import Any

from statehold.api.handler import Handler
from statehold.bound.attributes import schemas, sinks_of, table_types
from statehold.bound.handler import new_state
from statehold.bound.reference import references
from statehold.bound.sink import SinkPosition
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.disk.kinds.disk_tables import disk_tables
from statehold.ports import Membership, WorkerReport
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Writer
from statehold.snapshot.initial_record import write_initial_record
from statehold.snapshot.restore.estimate import Speeds
from statehold.snapshot.store.base import KAFKA, roots_of
from statehold.telemetry.log_events import Log
from statehold.telemetry.registry import ServiceMetrics
from statehold.testing.backup import Beginning
from statehold.testing.lane import Lane
from statehold.testing.memory.broker import MemoryBroker
from statehold.testing.memory.calls import DriverCalls
from statehold.testing.memory.clients import (
    MemoryControl,
    MemoryDelayed,
    MemoryFullSink,
    MemoryOffsets,
    MemoryReader,
    MemoryTransactions,
    StableMemoryReader,
)
from statehold.testing.memory.clock import ManualClock
from statehold.testing.memory.database import MemoryDatabase
from statehold.testing.memory.files import MemoryStores
from statehold.testing.stepped import EffectCall, EventLog, InlineEffects, Later
from statehold.worker.common.context import CallSetting, Scrubbing, Tools
from statehold.worker.common.memory_guard import Memory
from statehold.worker.replicas.reference import References, Sources
from statehold.worker.replicas.standby import Standbys, StandbyTools
from statehold.worker.sinks.position import note_of


class Wiring:
    """The base of the driver: everything that a test does not call."""

    _run_effects = False
    _run_calls = False
    _output_partitions = 1
    #: the format of the initial commit record
    _format = frame.NEWEST

    def __init__(self, factory: Callable[[], Handler[Any]], settings: Settings, names: Names, partitions: int) -> None:
        self.settings, self.names, self._partitions = settings, names, partitions
        self.clock = ManualClock()
        #: the cluster in memory: for tests of faults
        self.broker = MemoryBroker(self.clock)
        self.offsets = MemoryOffsets(self.broker)
        #: the database of the handler's sinks, in memory: for tests of faults
        self.database = MemoryDatabase()
        #: what the partitions believe of the speed of restores; the driver's own take no time
        self.speeds = Speeds()
        self.metrics = ServiceMetrics(names.group)
        self._effects: list[EffectCall] = []
        self._failing: dict[str, Exception] = {}
        self._log = EventLog()
        self._memory = Memory()
        self._membership = Membership(1, self.broker.generation, "driver")
        self._lanes: dict[int, Lane] = {}
        #: the states of a backup with which partitions have started
        self._beginnings: dict[int, Beginning] = {}
        #: the files of tables on disk, which outlive a crash: for tests of faults
        self.files = MemoryStores()
        #: those of standby replicas, on another machine
        self.replica_files = MemoryStores()
        #: reads those files again, if a test says so before the partitions start
        self.scrub: Scrubbing | None = None
        self._inline: dict[int, InlineEffects] = {}
        self._calls: dict[int, DriverCalls] = {}
        self._change_code(factory)

    def _change_code(self, factory: Callable[[], Handler[Any]]) -> None:
        """Give this release to the workers that start from now on."""
        self._factory = factory
        self._kind: type[Handler[Any]] = factory if isinstance(factory, type) else type(factory())
        self._disk = disk_tables(self._kind, self.settings, lambda: self.files)
        self._references = References(self._sources())
        self._references.turn()

    def _write_initial_record(self, partition: int, beginning: Beginning) -> None:
        """Start for the first time: the driver writes the initial commit record (rule D5), with the state if any."""
        positions = dict(zip(self.names.inputs, beginning.positions or (0,) * len(self.names.inputs), strict=True))
        chunks = records.chunks(beginning.changes, self.settings.snapshot.chunk_bytes)
        producer = MemoryTransactions(self.broker, self.names, partition)
        commit_record = write_initial_record(
            producer,
            self._place(partition),
            "driver",
            positions,
            int(self.clock.wall() * 1000),
            state_digest=beginning.digest,
            keys=beginning.keys,
            schemas=beginning.schemas,
            types=beginning.types,
            chunks=chunks,
            format=self._format,
        )
        producer.commit()
        for topic, position in positions.items():
            self.broker.offsets[topic, partition] = position
            if beginning.positions:
                log = self.broker.log(topic, partition)
                log.start = log.end = position
        if self._has_sinks:
            self.database.held[partition] = SinkPosition(0, commit_record.start, note_of(commit_record))

    @cached_property
    def standbys(self) -> Standbys:
        """Return the standby replicas. They follow when a test says so; a partition uses them from its next start."""
        return Standbys(self._around_standbys())

    @property
    def _has_sinks(self) -> bool:
        return bool(sinks_of(self._kind))

    def _place(self, partition: int) -> Place:
        names = self.names
        ids = {topic: f"id-of-{topic}" for topic in (*names.inputs, names.changelog, names.snapshot)}
        writer = Writer(instance="driver", reads=frame.NEWEST)
        snapshot = self.settings.snapshot
        roots = roots_of(self.settings) if snapshot.full_store != KAFKA or snapshot.former_stores else ()
        return Place(
            names, partition, self._partitions, ids, writer, schemas(self._kind), roots, table_types(self._kind)
        )

    def _sources(self) -> Sources:
        declared = tuple(references(self._kind).values())
        return Sources(
            declared=declared,
            partitions={each.topic: 1 for each in declared},
            reader=lambda cancelled: StableMemoryReader(self.broker, cancelled),
            deadline=self.settings.restore.deadline,
            log=Log(self._log),
            clock=self.clock,
        )

    def _around_standbys(self) -> StandbyTools:
        return StandbyTools(
            locate=self._place,
            new_state=lambda: new_state(
                self._kind,
                traced=self.settings.service.mode == "development",
                track_delta=self.settings.snapshot.delta_interval != "off",
            ),
            disk=disk_tables(self._kind, self.settings, lambda: self.replica_files),
            reader=lambda cancelled: StableMemoryReader(self.broker, cancelled),
            chosen=lambda: range(self._partitions),
            assigned=tuple,
            memory_limit="off",
            memory=self._memory,
            increment=self.names.changelog,
            metrics=self.metrics.service,
            log=Log(self._log),
            clock=count(step=1000.0).__next__,  # whatever is due by time is due
        )

    def _partitions_of(self, topic: str) -> int:
        """Return the number of partitions of an output, or of the topic of a `Rekey`."""
        return self._partitions if topic in self.names.rekeys else self._output_partitions

    @property
    def _most(self) -> int:
        return self.settings.kafka.message_max_bytes

    def _tools(self, partition: int) -> Tools:
        return Tools(
            place=self._place(partition),
            locate=lambda: self._place(partition),
            settings=self.settings,
            handler=self._factory,
            producer=lambda: MemoryTransactions(self.broker, self.names, partition, self._most, self._partitions),
            reader=lambda cancelled: MemoryReader(self.broker, cancelled),
            full_sink=lambda: MemoryFullSink(self.broker, self.names.snapshot, partition, self._most),
            offsets=self.offsets,
            control=lambda wake: MemoryControl(self.broker, self.names, partition),
            control_exists=lambda: self.broker.log(self.names.control, partition).end > 0,
            inputs=self._lanes[partition].read if self.names.others else None,
            delayed=lambda topic: MemoryDelayed(self.broker, topic, self.names.inputs, partition),
            membership=lambda: self._membership,
            report=self._report,
            log=Log(self._log),
            metrics=self.metrics.partition(partition),
            clock=self.clock,
            wall=self.clock.wall,
            output_partitions=self._partitions_of,
            speeds=self.speeds,
            memory=self._memory,
            standby=vars(self).get("standbys"),
            disk=self._disk,
            scrub=self.scrub,
            references=self._references,
            effects=lambda handler, about: self._new_effects(partition, handler, about.report),
            calls=lambda about: self._new_calls(partition, about),
            database=self.database.connector() if self._has_sinks else None,
            run_commit=Later,
            run_background=lambda call, name: Later(call, name, patience=1),
        )

    def _new_effects(self, partition: int, handler: Handler[Any], report: Any) -> InlineEffects:
        made = self._inline[partition] = InlineEffects(handler, report, self._effects, run=self._run_effects)
        made.failing = self._failing
        return made

    def _new_calls(self, partition: int, about: CallSetting) -> DriverCalls:
        made = self._calls[partition] = DriverCalls(about, run=self._run_calls)
        return made

    def _report(self, report: WorkerReport) -> None:
        if report.kind == "stale":
            self._membership = Membership(self._membership.version + 1, self.broker.generation, "driver")
        else:
            self._lanes[report.partition].report(report)
