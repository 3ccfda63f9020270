"""Watches a run: what was written to the brokers and logged, and whether it may be."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from statehold.snapshot.format import records
from statehold.snapshot.format.records import CommitRecord, Header, Part
from statehold.testing.kafka.cluster import SimulatedKafka
from statehold.testing.memory.log import MemoryLog, Outcome, Transaction
from statehold.worker.common.lifecycle import Event, Phase

if TYPE_CHECKING:
    from statehold.testing.simulation.process import Application, ProcessLife
    from statehold.testing.simulation.schedule import Intervention
    from statehold.testing.simulation.scheduler import Task, TaskScheduler

#: errors of a partition that a fault of the schedule explains
_EXPLAINED: Final = frozenset(
    {
        "Fenced",
        "Lost",
        "RestoreTimeout",
        "HangingTransaction",
        "LocalStoreFailed",
        "SinkUnreachable",
        "SinkFenced",
        "OutputRefused",
        "OffsetDisagrees",
    }
)
#: errors of a process of an older release, to which a partition comes that a newer one has written
_OF_OLDER: Final = frozenset({"UnknownSchema", "TableTypeChanged", "UnreadableValue", "UnknownEffect"})
#: log events that the timeline leaves out
_NOISE: Final = frozenset({"kafka_log", "kafka_retry", "restore_progress", "producer_identity", "member", "subscribed"})


class TimelineEntry(NamedTuple):
    """One line of the timeline."""

    time: float
    who: str
    text: str


class Observer:
    """Collects the timeline and checks what is written."""

    def __init__(self, kafka: SimulatedKafka, application: Application, scheduler: TaskScheduler) -> None:
        self._kafka, self._application, self._scheduler = kafka, application, scheduler
        self.timeline: list[TimelineEntry] = []
        #: (place in the code, phase of the partition) -> how often it was reached
        self.coverage: Counter[tuple[str, str]] = Counter()
        #: (what the schedule did, phase of the partition) -> how often
        self.happened: Counter[tuple[str, str]] = Counter()
        #: (phase, event) of `lifecycle.EDGES` -> how often a partition took it
        self.edges: Counter[tuple[Phase, Event]] = Counter()
        self.violations: list[str] = []
        #: errors of a partition that something in the run explains
        self.explained = set(_EXPLAINED)
        #: the release that an upgrade replaces
        self.older: Application | None = None
        self._last: dict[int, CommitRecord] = {}
        #: sessions of each partition's producer that another one has followed
        self._former: defaultdict[int, set[str]] = defaultdict(set)
        self._changelog = application.names.changelog
        kafka.transactions.on_end.append(self._ended)
        scheduler.on_point = self._point
        scheduler.on_taken = lambda task, action: self.on_taken(action, self._phase(task))

    def note(self, who: str, text: str) -> None:
        self.timeline.append(TimelineEntry(self._kafka.clock(), who, text))

    def on_log(self, process: ProcessLife, event: str, fields: dict[str, Any]) -> None:
        if event in _NOISE or self._scheduler.closing:
            return
        partition = fields.pop("partition", None)
        who = process.name if partition is None else f"{process.name}[{partition}]"
        shown = " ".join(f"{key}={value}" for key, value in fields.items() if value is not None and key != "exc_info")
        self.note(who, f"{event} {shown}")
        if event == "thread_died" or (event == "failed" and not self._is_explained(process, fields.get("error"))):
            self.violations.append(f"{who}: {event}: {fields.get('error')}: {fields.get('cause')}")

    def _is_explained(self, process: ProcessLife, error: object) -> bool:
        return error in self.explained or (process.application is self.older and error in _OF_OLDER)

    def on_taken(self, action: Intervention, *phases: str) -> None:
        """Count what the schedule did to partitions in these phases."""
        for phase in phases:
            self.happened[action.kind, phase] += 1

    def on_edge(self, phase: Phase, event: Event) -> None:
        self.edges[phase, event] += 1

    def _point(self, task: Task, name: str) -> None:
        self.coverage[name, self._phase(task)] += 1

    def _phase(self, task: Task) -> str:
        """Return the phase of the partition that the task works for; '' for none."""
        for worker in getattr(task.host, "workers", ()):
            if task.label.endswith(f"-{worker.partition}"):
                return str(worker.phase.value)
        return ""

    # Transactions

    def _ended(self, transactional_id: str, transaction: Transaction) -> None:
        if transaction.outcome is not Outcome.COMMITTED:
            return
        for log, first in transaction.logs.items():
            if log.topic == self._changelog:
                self._committed(log, first, transaction)

    def _committed(self, log: MemoryLog, first: int, transaction: Transaction) -> None:
        found = [records.unpack(message.value() or b"") for message in log.of(transaction, first)]
        record, where = found[-1] if found else None, f"{log.topic}[{log.partition}]"
        if not isinstance(record, CommitRecord):
            self.violations.append(f"{where}: a transaction ends without a commit record")
            return
        where = f"{where}: transaction {record.n}"
        if not isinstance(found[0], Header) or found[0].n != record.n:
            self.violations.append(f"{where} does not begin with its header")
        if record.parts != sum(isinstance(each, Part) for each in found):
            self.violations.append(f"{where} lacks chunks of its delta")
        self._compare(where, log.partition, record)
        self._last[log.partition] = record
        position = record.position(self._application.names.input)
        self.note("kafka", f"[{log.partition}] commits n={record.n} position={position} by {record.attempt}")

    def _compare(self, where: str, partition: int, record: CommitRecord) -> None:
        """Compare a commit record with the one before it: numbers, owners, positions."""
        before, former = self._last.get(partition), self._former[partition]
        if before is None:
            return
        if record.n != before.n + 1:
            self.violations.append(f"{where} follows {before.n}")
        if record.attempt != before.attempt:
            former.add(before.attempt)
        if record.attempt in former:
            self.violations.append(f"{where} is of a former owner, {record.attempt}")
        behind = [topic for topic, position in before.positions.items() if record.positions.get(topic, -1) < position]
        if behind:
            self.violations.append(f"{where} goes back in {', '.join(behind)}")

    # The end

    def positions(self, partition: int) -> dict[str, int]:
        """Return the next offset of each input after the last commit of a partition."""
        topics, last = self._application.names.inputs, self._last.get(partition)
        return {topic: last.positions.get(topic, 0) if last is not None else 0 for topic in topics}

    def transaction(self, partition: int) -> int | None:
        """Return the number of the last committed transaction of a partition."""
        last = self._last.get(partition)
        return last.n if last is not None else None

    def caught_up(self) -> bool:
        """Return whether the group has committed every record of the inputs."""
        self.check()
        names = self._application.names
        for topic in names.inputs:
            for log in self._kafka.topics[topic].logs:
                at = self._kafka.committed(names.group, (topic, log.partition))
                if at != log.end and (topic not in names.rekeys or at is None or log.stable < log.end or log.has(at)):
                    return False
        return not any(record.effects for record in self._last.values())

    def behind(self) -> str:
        names = self._application.names
        return ", ".join(
            f"{topic}[{log.partition}] {self._kafka.committed(names.group, (topic, log.partition))} of {log.end}"
            for topic in names.inputs
            for log in self._kafka.topics[topic].logs
        )

    def check(self) -> None:
        """:raises AssertionError: something was written or logged that must not be."""
        if self.violations:
            raise AssertionError("; ".join(self.violations))
