"""One run of a service in a simulated cluster: processes, input, faults, restarts, and what must hold."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from statehold.api.handler import HandlerFactory
from statehold.api.output import Headers
from statehold.bound.reference import references
from statehold.bound.rekey import with_rekeys
from statehold.bound.sink import SinkPosition
from statehold.bound.topics import class_of
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import PartitionCountChanged, StateholdError, TopicMissing, TopicReplaced
from statehold.messages import command
from statehold.snapshot.initial_record import write_initial_record
from statehold.snapshot.store.by_url import REPLACED
from statehold.testing.kafka.clients.clients import Clients
from statehold.testing.kafka.cluster import SimulatedKafka
from statehold.testing.memory.clock import ManualClock
from statehold.testing.simulation.compaction import CompactionLife
from statehold.testing.simulation.observer import Observer
from statehold.testing.simulation.process import Application, ProcessLife
from statehold.testing.simulation.schedule import Intervention, Occurrence, Schedule, mix
from statehold.testing.simulation.scheduler import Stalled, TaskHost, TaskScheduler
from statehold.testing.simulation.store import SIMULATED, SimulatedStore
from statehold.worker.common.lifecycle import Phase
from statehold.worker.partition import PartitionWorker
from statehold.worker.sinks.position import note_of

#: seconds between two starts of the first processes, and between two retries of failed partitions by an operator
_STAGGER, _RETRY = 0.4, 15.0
#: seconds between two moments at which something may happen to the cluster
_TURN: Final = 0.5
#: seconds of virtual time in which everything must be done after the last fault
_SETTLED: Final = 400.0
#: seconds for which the disk of the store of full snapshots is full
_FULL: Final = 5.0
#: seconds in which the threads of a stopped process end
_LEAVING: Final = 15.0
#: seconds in which a process stops and starts again with its next release
UPGRADE: Final = 8.0


class Violation(AssertionError):
    """The run broke a promise of the service."""


class InputRecord(NamedTuple):
    """One record of an input, and when it is written (seconds of virtual time)."""

    time: float
    partition: int
    value: bytes | None
    #: `fuzz_crashes` encodes it as the type of the keys of its input; bytes are taken as they are
    key: Any = None
    topic: str = ""
    #: in milliseconds since 1970; 0: when it is written
    timestamp: int = 0
    #: such as those of a request
    headers: Headers | None = None


@dataclass(frozen=True)
class Scenario:
    """What runs, without what goes wrong."""

    handler: HandlerFactory
    inputs: Sequence[InputRecord]
    settings: Settings
    partitions: int = 1
    processes: int = 2
    topics: tuple[str, ...] = ("input",)
    name: str = ""
    #: checks the outcome; raises AssertionError
    verify: Callable[[RunResult], None] = lambda outcome: None
    #: seconds of virtual time after the last commit, for timers that are due then
    rest: float = 0.0
    #: seconds until a process that has ended starts again, at least, and what chance adds at most
    restart: tuple[float, float] = (0.2, 6.0)
    #: called before the run
    begin: Callable[[], None] = lambda: None
    #: what may happen to the cluster besides stops and kills of processes
    events: Mapping[str, Callable[[Simulation], None]] = field(default_factory=dict)
    #: most seconds from the end of a transaction to its marker in a partition
    markers: float = 0.0
    #: the next release, and when each process gets it (seconds of virtual time)
    release: HandlerFactory | None = None
    upgrades: Mapping[str, float] = field(default_factory=dict)


@dataclass
class RunResult:
    """What a run has left in Kafka and in the database."""

    kafka: SimulatedKafka
    application: Application
    names: Names
    store: SimulatedStore
    #: the end offset of each partition of the inputs, if one was created again or got more partitions: the service may
    #: handle no record of the new ones
    ends: Mapping[tuple[str, int], int] | None = None
    #: of the outputs, dead letters and retries of all releases
    topics: tuple[str, ...] = ()

    def outputs(self, topic: str) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
        """Return the committed (key, value) of an output, by partition."""
        found = self.kafka.topics.get(topic)
        return {log.partition: [(m.key(), m.value()) for m in log.committed()] for log in found.logs} if found else {}


@dataclass
class RunReport:
    """What happened in a run."""

    scenario: Scenario
    schedule: Schedule
    #: None: everything held
    violation: BaseException | None
    taken: list[Occurrence]
    steps: int
    #: virtual seconds
    seconds: float
    observer: Observer

    @property
    def actions(self) -> dict[str, str]:
        """What the schedule did, by place: enough to repeat it."""
        return {each.place: str(each.action) for each in self.taken}


class Simulation:
    """Runs one scenario with one schedule."""

    def __init__(self, scenario: Scenario, schedule: Schedule) -> None:
        self.scenario, self.schedule = scenario, schedule
        self.clock = ManualClock()
        self.scheduler = TaskScheduler(self.clock, schedule)
        self.kafka = SimulatedKafka(self.clock, self.scheduler, seed=1)
        self.scheduler.kafka = self.kafka
        if scenario.markers:
            delays = random.Random(schedule.order)
            self.kafka.transactions.marker_delay = lambda place: delays.random() * scenario.markers
        self.scheduler.on_action = self.act
        kind = class_of(scenario.handler)
        names = Names(kind.__name__.lower(), scenario.topics[0], others=scenario.topics[1:])
        self.names = with_rekeys(names, kind)
        self.application = Application(scenario.handler, self.names, scenario.partitions, scenario.settings)
        #: process -> another release of the service, which it runs
        self.releases: dict[str, Application] = {}
        #: the next release of the scenario, or the only one
        self.newest = self.application
        if scenario.release is not None:
            self.newest = self.application.release(scenario.release)
        self.store = SimulatedStore(self.scheduler, self.clock)
        self.observer = Observer(self.kafka, self.application, self.scheduler)
        self.processes: dict[str, ProcessLife] = {}
        self._lives: list[ProcessLife] = []
        self._hosts: list[TaskHost] = []
        self._numbers: Counter[str] = Counter()
        #: moments at which something could happen to the cluster
        self._turns = 0
        self._wanted: set[str] = set()
        #: processes that may end
        self._removed: set[str] = set()
        self._fed = self._compactions = 0
        self._ends: dict[tuple[str, int], int] | None = None
        self._grown = False

    def run(self) -> RunReport:
        """Run to the end. Violations are in the report."""
        violation: BaseException | None = None
        state = random.getstate()
        random.seed(self.schedule.order)
        try:
            self.scenario.begin()
            self._run()
        except Exception as error:  # noqa: BLE001  a bug of the product, or of the simulation
            violation = error
        finally:
            self.close()
            random.setstate(state)
        return RunReport(
            self.scenario,
            self.schedule,
            violation,
            self.scheduler.taken,
            self.scheduler.steps,
            self.clock(),
            self.observer,
        )

    # Steps

    @property
    def result(self) -> RunResult:
        """What the run has left."""
        topics = dict.fromkeys(topic for each in self.applications for topic in each.all_outputs)
        return RunResult(self.kafka, self.application, self.names, self.store, self._ends, tuple(topics))

    @property
    def applications(self) -> tuple[Application, ...]:
        """The releases that the scenario runs."""
        return (self.application,) if self.newest is self.application else (self.application, self.newest)

    def begin(self) -> None:
        """Create the topics, write the initial commit records, and start the processes one after the other."""
        self._prepare()
        for number in range(self.scenario.processes):
            name = "abcdefgh"[number]
            self._wanted.add(name)
            self.kafka.timers.after(number * _STAGGER, partial(self._start, name))

    def settle(self) -> None:
        """Run until every record is committed and every partition is live. :raises Stalled: :raises AssertionError:"""
        self._settle()

    def advance(self, seconds: float) -> None:
        """Run for this much virtual time."""
        until = self.clock() + seconds
        self.kafka.timers.at(until, lambda: None)
        self.scheduler.run(lambda: self.clock() >= until, until + 1.0)
        self.observer.check()

    def add(self, name: str) -> None:
        """Start a process."""
        self._wanted.add(name)
        self._start(name)

    def remove(self, name: str) -> None:
        """Do not start this process again once it has ended."""
        self._wanted.discard(name)
        self._removed.add(name)

    def close(self) -> None:
        """End all tasks."""
        self.scheduler.close([*self._hosts, *self._lives])

    # The course of a run

    def _run(self) -> None:
        self.begin()
        upgrades = self.scenario.upgrades
        last = max((each.time for each in self.scenario.inputs), default=0.0)
        last = max(last, *(time + UPGRADE for time in upgrades.values())) if upgrades else last
        began = self.clock()
        for name, time in upgrades.items():
            self.kafka.timers.at(began + time, partial(self._upgrade, name))
        for each in self.scenario.inputs:
            self.kafka.timers.at(began + each.time, partial(self.feed, each))
        self.kafka.timers.after(_TURN, self._turn)
        self.kafka.timers.after(_RETRY, self._retry)
        self.scheduler.run(lambda: self.clock() >= began + last + 1.0 and self._fed == len(self.scenario.inputs), 1e9)
        self.schedule.quiet = True
        self._settle()
        self._rest()
        self.observer.check()
        self.scenario.verify(self.result)
        self._stop_all()
        if self._ends is None:
            self._check_restore()

    def _rest(self) -> None:
        """Let the scenario's rest pass without a rebalance, because timers of a partition need it alive."""
        while self.scenario.rest and self._ends is None:
            until = self.clock() + self.scenario.rest
            self.scheduler.run(partial(self._has_rested, until), until + 1.0)
            if self.clock() >= until:
                return
            self._settle()

    def _has_rested(self, until: float) -> bool:
        return self.clock() >= until or not self._is_done()

    def _settle(self) -> None:
        limit = self.clock() + _SETTLED
        try:
            self.scheduler.run(self._is_done, limit)
        except Stalled as stalled:
            raise Stalled(f"{stalled}: {self._describe()}") from None

    def _is_done(self) -> bool:
        """All is committed, and nothing is under way."""
        lives = [*self._lives_now()]
        if not self._wanted <= self.processes.keys() or any(not each.running or each.hindered for each in lives):
            return False
        if self._ends is not None:
            return self._has_refused()
        if not self.observer.caught_up():
            return False
        workers = [worker for life in self._lives_now() for worker in life.workers if not worker.closed.is_set()]
        live = [worker for worker in workers if worker.committed() is not None]
        if sorted(worker.partition for worker in live) != [*range(self.scenario.partitions)]:
            return False
        if any(self._calls(worker) for worker in live):
            return False
        return self._is_stable(len(lives))

    def _calls(self, worker: PartitionWorker) -> bool:
        """Return whether durable calls of a partition are pending, or may be."""
        status = worker.status()
        if status.live is None or status.live.calls is None:
            return False
        return status.live.calls > 0 or status.transaction != self.observer.transaction(worker.partition)

    def _has_refused(self) -> bool:
        """Return whether every partition has failed because of its input, or has handled all that it may."""
        self.observer.check()
        workers = {
            each.partition: each for life in self._lives_now() for each in life.workers if not each.closed.is_set()
        }
        return all(
            (worker := workers.get(partition)) is not None
            and (worker.phase is Phase.FAILED or (worker.phase is Phase.LIVE and self._has_handled(partition)))
            for partition in range(self.scenario.partitions)
        )

    def _has_handled(self, partition: int) -> bool:
        assert self._ends is not None
        mine = {topic: end for (topic, found), end in self._ends.items() if found == partition}
        return self.observer.positions(partition) == mine

    def _is_stable(self, members: int) -> bool:
        """Return whether the group has assigned every partition to its members."""
        group = self.kafka.group(self.names.group)
        found = group.describe() if group is not None else None
        if found is None or found.state != "stable" or len(found.members) != members:
            return False
        return sum(len(each.partitions) for each in found.members) == self.scenario.partitions

    def _lives_now(self) -> Iterable[ProcessLife]:
        return [life for name, life in self.processes.items() if life.running or name not in self._removed]

    def _describe(self) -> str:
        lives = [f"{life.name} {_condition(life)}" for life in self._lives_now()]
        return f"{'; '.join(lives)}; {self.observer.behind()}"

    def _stop_all(self) -> None:
        self._wanted.clear()
        for life in self._lives_now():
            life.manager.stop(self.scenario.settings.service.stop_timeout)
        self.scheduler.run(lambda: all(not life.running for life in self._lives_now()), self.clock() + 120.0)
        self.processes.clear()
        ended = [life for life in self._lives if life.ended and not life.crashed]
        try:
            self.scheduler.run(lambda: not any(life.tasks for life in ended), self.clock() + _LEAVING)
        except Stalled:
            left = [task.name for life in ended for task in life.tasks]
            raise Violation(f"these threads run {_LEAVING:.0f} s after the end of their process: {left}") from None
        unclosed = {life.name: places for life in ended if (places := self.kafka.watched_by(life.name))}
        if unclosed:
            raise Violation(f"these processes have ended, and their readers are open: {unclosed}")

    def _check_restore(self) -> None:
        """Let a new process restore everything that the others have left."""
        self._wanted.add("z")
        self.releases["z"] = self.newest
        self._start("z")
        self._settle()

    # Preparation

    def _prepare(self) -> None:
        kafka, names, partitions = self.kafka, self.names, self.scenario.partitions
        for topic in (*names.inputs, names.changelog, names.snapshot, names.control):
            kafka.create_topic(topic, partitions)
        for topic in self.result.topics:
            kafka.create_topic(topic, partitions)
        for topic in {each.topic: None for made in self.applications for each in references(made.kind).values()}:
            kafka.create_topic(topic)
        host = TaskHost("setup")
        self._hosts.append(host)
        ended: list[int] = []

        def first_start() -> None:
            clients = Clients(kafka, "setup", names, self.scenario.settings)
            for partition in range(partitions):
                self._write_first(clients, partition)
            ended.append(1)

        quiet, self.schedule.quiet = self.schedule.quiet, True
        self.scheduler.spawn(host, "main", first_start)
        self.scheduler.run(lambda: bool(ended), 60.0)
        self.schedule.quiet = quiet

    def _write_first(self, clients: Clients, partition: int) -> None:
        """Write the initial commit record of a partition, as `statehold topics create --start-at` does."""
        producer, names = clients.transactions(partition), self.names
        place = self.application.place(self.kafka, partition, "setup")
        positions, moment = dict.fromkeys(names.inputs, 0), int(self.clock.wall() * 1000)
        record = write_initial_record(producer, place, "simulation", positions, moment)
        producer.send_all_offsets({(topic, partition): 0 for topic in names.inputs}, None, record.lineage)
        producer.commit()
        producer.drop()
        if self.application.has_sinks:
            self.application.database.held[partition] = SinkPosition(0, 0, note_of(record))

    # What happens meanwhile

    def _start(self, name: str) -> None:
        self._numbers[name] += 1
        life = ProcessLife(
            f"{name}{self._numbers[name]}",
            self.releases.get(name, self.application),
            self.kafka,
            self.scheduler,
            self.application.disk_of(name, self.scheduler),
            self.observer.on_log,
            self.observer.on_edge,
        )
        self.processes[name] = life
        self._lives.append(life)
        self.observer.note(life.name, "starts")
        self._watch(name, life)

    def _upgrade(self, name: str) -> None:
        """Let a process stop; it starts again with the next release, also if it is down."""
        self.releases[name], self.observer.older = self.newest, self.application
        life = self.processes.get(name)
        if life is not None and life.running:
            self.observer.note(life.name, "stops for its next release")
            life.manager.stop(self.scenario.settings.service.stop_timeout)

    def _watch(self, name: str, life: ProcessLife) -> None:
        """Start a new life some time after this one has ended, as systemd does."""
        if not life.running:
            if name in self._wanted:
                least, most = self.scenario.restart
                share = mix(self.schedule.order, f"restart {life.name}") * 2.0**-32
                self.kafka.timers.after(least + share**2 * most, lambda: self._restart(name, life))
            if life.failure is not None:
                self.observer.note(life.name, f"ended by {type(life.failure).__name__}: {life.failure}")
            return
        self.kafka.timers.after(0.5, lambda: self._watch(name, life))

    def _restart(self, name: str, life: ProcessLife) -> None:
        """Start the life after this one, unless a test has."""
        if self.processes[name] is life:
            self._start(name)

    def feed(self, each: InputRecord) -> None:
        """Write a record to an input now."""
        log = self.kafka.log(each.topic or self.names.input, each.partition)
        self.kafka.append(log, each.value, each.key, each.headers, timestamp=each.timestamp)
        self._fed += 1
        if self._ends is not None and self._grown:  # the records of a partition stay where they were
            self._ends[log.topic, log.partition] = log.end

    def act(self, host: TaskHost, action: Intervention) -> None:
        """Do something to a whole process."""
        if not isinstance(host, ProcessLife):
            return
        self.observer.note(host.name, str(action))
        match action.kind:
            case "kill":
                host.crash()
            case "halt":
                host.freeze(action.seconds)
            case "cut":
                host.cut(action.seconds)

    def _turn(self) -> None:
        """Something may happen to the cluster."""
        if not self.schedule.quiet:
            self.kafka.timers.after(_TURN, self._turn)
        self._turns += 1
        if self._turns % 3 == 0:
            self.command("take")
        for place in ("world", "event"):
            action = self.schedule.action(place, self._turns, place, [*self.scenario.events])
            if action is not None:
                self.scheduler.taken.append(Occurrence(self.clock(), f"{place}#{self._turns}", action))
                self.observer.note("world", str(action))
                self._do(action)

    def _do(self, action: Intervention) -> None:
        lives = [life for life in self._lives_now() if life.running and not life.frozen]
        chosen = lives[int(action.argument or 0) % len(lives)] if lives else None
        targets = [chosen] if action.kind in ("stop", "kill", "halt") and chosen is not None else lives
        self.observer.on_taken(action, *(worker.phase.value for life in targets for worker in life.workers))
        match action.kind:
            case "stop" if chosen is not None:
                chosen.manager.stop(self.scenario.settings.service.stop_timeout)
            case "kill" if chosen is not None:
                chosen.crash()
            case "halt" if chosen is not None:
                chosen.freeze(20.0)
            case "take":
                self.command("take")
            case "join" if "x" not in self._wanted:
                self._wanted.add("x")
                self._start("x")
            case "release":
                self.kafka.transactions.release()
            case name if name in self.scenario.events:
                self.scenario.events[name](self)

    # Events of a scenario

    def delete_committed(self) -> None:
        """Delete the records of the inputs that the group has committed, as retention does after a week."""
        for topic in self.names.inputs:
            for log in self.kafka.topics[topic].logs:
                log.truncate(self.kafka.committed(self.names.group, (topic, log.partition)) or 0)

    def compact(self) -> None:
        """Start a compaction of all partitions."""
        self._compactions += 1
        name = f"compaction{self._compactions}"
        life = CompactionLife(name, self.application, self.kafka, self.scheduler, self.observer.note)
        self._hosts.append(life)
        self.observer.note(life.name, "starts")

    def fill_disk(self) -> None:
        """Let the disk of the store of full snapshots be full for some seconds."""
        self.store.full_until = self.clock() + _FULL

    def create_again(self) -> None:
        """Delete the first input, and create it again: later records go to the new topic."""
        if self._ends is None:
            self._remember_ends(TopicReplaced)
            self.kafka.delete_topic(self.names.input)
            self.kafka.create_topic(self.names.input, self.scenario.partitions)

    def grow(self) -> None:
        """Add a partition to the first input."""
        if self._ends is None:
            self._grown = True
            self._remember_ends(PartitionCountChanged, TopicMissing)
            self.kafka.grow_topic(self.names.input, self.scenario.partitions + 1)

    def _remember_ends(self, *errors: type[StateholdError]) -> None:
        logs = [log for topic in self.names.inputs for log in self.kafka.topics[topic].logs]
        self._ends = {(log.topic, log.partition): log.end for log in logs}
        self.observer.explained |= {error.__name__ for error in errors}

    def command(self, name: str) -> None:
        """Send a command of statehold to every partition, through the control topic."""
        for partition in range(self.scenario.partitions):
            log = self.kafka.log(self.names.control, partition)
            self.kafka.append(log, None, None, [command.header(name, "", "simulation")])

    def _retry(self) -> None:
        """An operator retries what has failed."""
        self.kafka.timers.after(_RETRY, self._retry)
        for life in self._lives_now():
            if life.running:
                life.manager.retry()


def _condition(life: ProcessLife) -> str:
    if not life.running:
        return "crashed" if life.crashed else "ended"
    found = [each.status() for each in life.workers]
    shown = [f"[{each.partition}] {each.phase}@{each.position} {each.cause or ''}".strip() for each in found]
    return ("frozen " if life.frozen else "") + ", ".join(shown)


#: the simulation that runs now
_running: list[Simulation] = []


def is_committed(topic: str, partition: int, offset: int) -> bool:
    """Return whether the group has committed a record of an input, in the simulation that runs now."""
    simulation = _running[-1]
    committed = simulation.kafka.committed(simulation.names.group, (topic, partition))
    return committed is not None and committed > offset


def reach(name: str) -> Intervention | None:
    """Name a place in a function of a test, such as an effect: a process may crash there, other threads may run."""
    return _running[-1].scheduler.reach(name) if _running else None


REPLACED[SIMULATED] = lambda: _running[-1].store


def run(scenario: Scenario, schedule: Schedule) -> RunReport:
    """Run a scenario with a schedule, without the garbage collector, which costs more than the run."""
    was_on = gc.isenabled()
    gc.disable()
    simulation = Simulation(scenario, schedule)
    _running.append(simulation)
    try:
        return simulation.run()
    finally:
        _running.pop()
        if was_on:
            gc.enable()
