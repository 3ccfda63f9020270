"""The dependencies of a partition's thread; the wiring fills them in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

from statehold.api.call import CallOptions
from statehold.api.handler import Handler
from statehold.api.values.serde import Serde
from statehold.bound.reference import SharedRows, Version
from statehold.bound.sink import Connect
from statehold.common.threads import SYSTEM, Background, BeginCall, Threads
from statehold.config.sections.effects_timers_sinks import CallsSettings, EffectsSettings
from statehold.config.settings import Settings
from statehold.disk.disk_state import DiskState
from statehold.disk.kinds.disk_tables import DiskTables
from statehold.health.death_notes import DeathNotes
from statehold.messages.call_outcome import CallJob, CallOutcome
from statehold.ports import (
    Access,
    Clock,
    Control,
    Delayed,
    FullSink,
    InputReading,
    InputReceiver,
    Membership,
    Offsets,
    Reader,
    Transactions,
    WorkerReport,
)
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Effect
from statehold.snapshot.restore.estimate import Speeds
from statehold.snapshot.restore.local_cache import LocalFullSnapshots
from statehold.snapshot.restore.standby_copy import Copy
from statehold.snapshot.store.base import KAFKA, folder_of
from statehold.snapshot.store.by_url import open_store
from statehold.snapshot.store.sink import StoreSink
from statehold.telemetry.log_events import Event, Log
from statehold.telemetry.registry import PartitionMetrics
from statehold.worker.common.activity import Handling
from statehold.worker.common.memory_guard import Memory
from statehold.worker.common.tracing import Tracing

#: reports an attempt of a call that raised: the call, the error, how many attempts so far, whether it was the last one
CallReport = Callable[[CallJob, BaseException, int, bool], None]


class CallFunction(NamedTuple):
    """How the calls of one `Call` are made; no part of the state."""

    options: CallOptions
    argument: Serde[Any]
    result: Serde[Any]


class CallSetting(NamedTuple):
    """The facts of a partition that its runner of calls needs."""

    #: what the handler declares, by stored name
    calls: Mapping[str, CallFunction]
    report: CallReport
    #: ends the wait of the partition's thread, on any thread
    wake: Callable[[], None]
    settings: CallsSettings = CallsSettings()
    #: reports that the other system of a `Call` is down, with the last error, or up again (''), on any thread
    outage: Callable[[str, str], None] = lambda call, error: None
    #: another owner has the partition now; the runner calls it before each attempt, on any thread
    lost: Callable[[], bool] = bool
    #: most bytes of an answer
    largest: int = 262_144
    clock: Clock = monotonic


class Calls(Protocol):
    """Makes calls; every method belongs to the partition's thread."""

    def submit(self, jobs: Sequence[CallJob]) -> None:
        """Start to make them; does not block. One that is known already is not made twice."""
        ...

    def drop(self, ids: Sequence[str]) -> None:
        """Make these calls no more."""
        ...

    def finished(self) -> list[CallOutcome]:
        """Return what ended since the last call."""
        ...

    def outages(self) -> tuple[str, ...]:
        """Return the stored names of the `Call`s whose other system is down."""
        ...

    def blocked(self) -> str:
        """Return the stack of a function that blocks the event loop; '' if none does."""
        ...

    def close(self, timeout: float) -> None:
        """Begin no attempt, wait at most `timeout` seconds for those in progress, and cancel the rest."""
        ...


#: creates the runner of a partition's calls
CallsOf = Callable[[CallSetting], Calls]

#: reports an attempt that raised: the effect, the error, how many attempts so far
EffectReport = Callable[[Effect, BaseException, int], None]


class EffectSetting(NamedTuple):
    """The facts of a partition that its runner of side effects needs."""

    #: for its threads
    name: str
    report: EffectReport
    settings: EffectsSettings = EffectsSettings()
    #: another owner has the partition now; the runner calls it before each attempt, on any thread
    lost: Callable[[], bool] = bool
    clock: Clock = monotonic
    threads: Threads = SYSTEM


class Pending(NamedTuple):
    """Counts of side effects that were submitted here and are not done."""

    number: int = 0
    #: bytes of a commit record
    weight: int = 0
    #: time of the record that asked for the oldest of them, in milliseconds since 1970; 0: nothing is pending
    oldest: int = 0


class Effects(Protocol):
    """Runs side effects; every method belongs to the partition's thread."""

    def unfinished(self) -> tuple[Effect, ...]:
        """Return the effects that were submitted and are not known to be done."""
        ...

    def pending(self) -> Pending: ...

    def submit(self, effects: Sequence[Effect]) -> None:
        """Start to run them; does not block."""
        ...

    def close(self, timeout: float) -> tuple[Effect, ...]:
        """Wait at most `timeout` seconds; the next owner runs those that are still pending."""
        ...


#: creates the runner of a handler's effects
EffectsOf = Callable[[Handler[Any], EffectSetting], Effects]


class SharedReferences(Protocol):
    """The reference data of this process. Any thread."""

    @property
    def shared(self) -> Mapping[str, SharedRows]:
        """By topic."""
        ...

    def await_version(self, wanted: Mapping[str, Version], partition: int, cancelled: Callable[[], bool]) -> None:
        """Wait until the process has read all data that existed at its start, and at least these versions.

        :raises RestoreTimeout: that took too long. :raises Cancelled: `cancelled` became true.
        """
        ...


class NoReferences:
    """The handler declares no reference data."""

    shared: Mapping[str, SharedRows] = {}

    def await_version(self, wanted: Mapping[str, Version], partition: int, cancelled: Callable[[], bool]) -> None:
        """Return at once."""


class Standby(Protocol):
    """The copies of other owners' states that this process keeps. Any thread."""

    def take(self, partition: int) -> Copy | None:
        """Hand over the copy to the caller; None without a complete copy."""
        ...

    def give_way(self) -> bool:
        """Drop all copies, because an owned partition needs the memory. False: there was no copy."""
        ...


class Scrubbing(Protocol):
    """Reads the files of live partitions again. Any thread."""

    def join(self, state: DiskState, fail: Callable[[BaseException], None], meters: PartitionMetrics, log: Log) -> None:
        """Read these files from now on; `fail` gets what ends the partition."""
        ...

    def leave(self, state: DiskState) -> None:
        """Read them no more."""
        ...


def _no_delayed(topic: str) -> Delayed:
    raise NotImplementedError(f"{topic} is not read here")


@dataclass(frozen=True, slots=True)
class Tools:
    """The dependencies of one partition. Its thread may call everything here."""

    #: the partition's topics at its assignment; `locate` asks the brokers again before each restore
    place: Place
    locate: Callable[[], Place]
    settings: Settings
    handler: Callable[[], Handler[Any]]
    producer: Callable[[], Transactions]
    #: a reader whose calls end with Cancelled once the argument returns True
    reader: Callable[[Callable[[], bool]], Reader]
    full_sink: Callable[[], FullSink]
    offsets: Offsets
    membership: Callable[[], Membership]
    report: Callable[[WorkerReport], None]
    log: Log
    metrics: PartitionMetrics
    clock: Clock
    wall: Callable[[], float]
    output_partitions: Callable[[str], int]
    #: explains denied access, and reports whether the brokers still deny it
    access: Access = field(default_factory=Access)
    #: runs side effects; None: `EffectRunner`
    effects: EffectsOf | None = None
    #: makes durable calls; None: `CallRunner`
    calls: CallsOf | None = None
    #: reads the control topic during one live phase and calls its argument at each command; None: no such topic
    control: Callable[[Callable[[], None]], Control] | None = None
    #: whether that topic exists by now; may block for seconds
    control_exists: Callable[[], bool] = lambda: True
    #: reads all inputs from these offsets of these topic ids, during one live phase; None: the manager reads the one
    inputs: Callable[[Mapping[str, int], Mapping[str, str], InputReceiver], InputReading] | None = None
    #: reads a retry topic, by name, during one live phase
    delayed: Callable[[str], Delayed] = _no_delayed
    #: the database of the sinks; None for a handler without sinks
    database: Connect | None = None
    #: the restore speeds that this process has measured
    speeds: Speeds = field(default_factory=Speeds)
    #: whether this process has room for a state
    memory: Memory = field(default_factory=Memory)
    #: the handler call in progress; see `statehold.worker.watchdog`
    handling: Handling = field(default_factory=Handling)
    #: at which record a process died; None: nothing is noted on disk
    deaths: DeathNotes | None = None
    #: None: tracing is off
    tracing: Tracing | None = None
    #: None: this process keeps no copies
    standby: Standby | None = None
    references: SharedReferences = field(default_factory=NoReferences)
    #: the files of tables on disk; None: the handler has no table there
    disk: DiskTables | None = None
    #: reads those files again in the background; None: `state.scrub` is 0, or there is no such table
    scrub: Scrubbing | None = None
    #: what is open of all partitions of the process; weak, because a partition that fails closes nothing
    open_transactions: WeakSet[object] = field(default_factory=WeakSet)
    #: threads for commits, in parallel with the next records, and for reading full snapshots back
    run_commit: BeginCall = Background
    run_background: BeginCall = Background
    threads: Threads = SYSTEM

    @property
    def store_root(self) -> str:
        """The store for the chunks of full snapshots; '' for Kafka."""
        root = self.settings.snapshot.full_store
        return "" if root == KAFKA else root

    def new_sink(self, ends: Callable[[], bool]) -> FullSink:
        """Open a sink for the next full snapshot: Kafka, or a store plus Kafka. `ends`: see `StoreSink`."""
        sink = self.full_sink()
        if not self.store_root:
            return sink
        store = open_store(self.store_root)
        folder = folder_of(self.place)
        return StoreSink(store, self.store_root, folder, sink, ends=ends, threads=self.threads, clock=self.clock)

    def local(self) -> LocalFullSnapshots | None:
        """The partition's file in `snapshot.local_dir`."""
        directory = self.settings.snapshot.local_dir
        if not directory:
            return None
        return LocalFullSnapshots(Path(directory), self.place.names, self.place.partition, self._log_local)

    def _log_local(self, event: Event, fields: dict[str, object]) -> None:
        (self.log.warning if event == "local_full_failed" else self.log.info)(event, **fields)
