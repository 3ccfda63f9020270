"""Looks after the topics while the service runs: are they still the ones it started with, and how long do they last?

On a thread of its own, never on the way of a record. What it finds fails the partitions that are live, typed and by
name: they must not go on with a state whose input, increments or keys are others now (invariant 8).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import PartitionCountChanged, StateholdError, TopicMissing, TopicReplaced
from statehold.kafka.admin.admin import Admin, TopicFacts
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.clients.reader import KafkaReader
from statehold.ports import Cancelled, OutOfRange
from statehold.runtime.retention_forecast import RECORD_OVERHEAD, Ahead, Rate, Retention, hours_left
from statehold.telemetry import metrics
from statehold.telemetry.log_events import Log
from statehold.telemetry.registry import Sample

#: a finding is believed when it is there again after so many seconds
_AGAIN: Final = 0.5
#: how long retention leaves is measured this often
_MEASURE_EVERY: Final = 60.0
#: records looked at for their size
_SAMPLE: Final = 100
#: below this share of retention.ms it is told of, once an hour
_NEAR, _TELL_EVERY = 0.25, 3600.0

#: fails the live partitions: (partition, its next offset) -> the error
Fail = Callable[[Callable[[int, int], StateholdError]], object]


class Finding(NamedTuple):
    """What is wrong with a topic, and what kind of error that is."""

    kind: type[StateholdError]
    text: str


def compare(names: Names, known: TopicFacts, now: TopicFacts | None) -> Finding | None:
    """What has become of a topic since the service started (pure)."""
    ours = known.name in (names.input, names.changelog, names.snapshot)
    if now is None:
        advice = (
            "bring it back from a backup (`statehold snapshot restore`), or see `statehold repair --help`"
            if ours
            else f"create it with {known.partitions} partitions (`statehold topics create`), then `statehold retry all`"
        )
        return Finding(TopicMissing, f"topic {known.name} is gone; {advice}")
    if ours and now.id != known.id:
        repair = "accept-gap" if known.name == names.input else "rebase"
        return Finding(
            TopicReplaced,
            f"topic {known.name} was deleted and created again (id {known.id} before, {now.id} now), so positions mean "
            f"other records. Nothing was skipped. Bring the old topic back, or stop the service: `statehold repair "
            f"{repair} MODULE:SERVICE --why ... --dry-run` shows how it can go on",
        )
    if known.name == names.input and now.partitions != known.partitions:
        return Finding(
            PartitionCountChanged,
            f"{known.name} has {now.partitions} partitions, it had {known.partitions}: keys have moved. The state is "
            f"intact. Stop service and producers, then `statehold state repartition --to {now.partitions}` "
            f"(docs/surgery.md)",
        )
    return None


class Topology:
    """`start`, then `close`; `tell` and `gauges` by any thread."""

    def __init__(
        self,
        settings: Settings,
        names: Names,
        admin: Admin,
        facts: Mapping[str, TopicFacts],
        log: Log,
        fail: Fail,
        here: Callable[[], Sequence[dict[str, Any]]],
    ) -> None:
        """`here` tells the status of the partitions of this process."""
        self._settings, self._names, self._admin, self._facts = settings, names, admin, facts
        self._log, self._fail, self._here = log, fail, here
        self._topics = TopicAdmin(admin)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"topology-{names.service}", daemon=True)
        self._told: str | None = None
        self._rates: dict[int, Rate] = {}
        self._size = float(RECORD_OVERHEAD)
        self._measured = self._warned = -math.inf
        #: partition -> hours that retention leaves at least, of the newest measurement
        self._hours: dict[int, float] = {}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Does not wait: a question that is under way has a deadline of its own."""
        self._ending.set()

    def tell(self, status: dict[str, Any]) -> dict[str, Any]:
        """`Service.status` with what was found; hours are None while nothing was measured, or without a limit."""
        status["topology"] = self._told
        for partition in status["partitions"]:
            hours = self._hours.get(partition["partition"], math.inf)
            partition["retention_hours"] = round(hours, 2) if math.isfinite(hours) else None
        return status

    def gauges(self) -> Iterator[Sample]:
        here = {partition["partition"] for partition in self._here()}
        for partition, hours in self._hours.copy().items():
            if partition in here:
                yield Sample(metrics.RETENTION_LEFT, (str(partition),), hours * 3600)

    # The thread

    def _run(self) -> None:
        while not self._ending.wait(self._settings.service.topology_interval):
            try:
                self._look()
                self._measure_at_times(time.monotonic())
            except (StateholdError, OutOfRange, Cancelled):
                continue  # whatever the cluster says now, the next look may go better; the workers have deadlines
            except Exception as error:  # noqa: BLE001 - and so it may after a bug of ours; nobody else looks
                self._log.error("thread_died", thread="topology", cause=repr(error), exc_info=True)

    def _look(self) -> None:
        found = self._findings()
        if found and not self._ending.wait(_AGAIN):
            again = self._findings()
            found = [finding for finding in found if finding in again]
        if not found:
            self._told = None
            return
        finding = found[0]
        if finding.kind is TopicMissing and not self._surely_gone():
            return
        if self._told != finding.text:
            self._told = finding.text
            self._log.error("topology_changed", error=finding.kind.__name__, cause=finding.text)
        self._fail(lambda partition, position: _error(finding, self._names.input, partition, position))

    def _findings(self) -> list[Finding]:
        self._admin.require_reachable(self._names.input)
        now = self._admin.describe(list(self._facts), self._ending.is_set)
        findings = [compare(self._names, known, now[topic]) for topic, known in self._facts.items()]
        return [finding for finding in findings if finding is not None]

    def _surely_gone(self) -> bool:
        try:
            for topic in self._facts:
                self._admin.require_there(topic)
        except TopicMissing:
            return True
        return False

    # Retention

    def _measure_at_times(self, now: float) -> None:
        if now - self._measured >= _MEASURE_EVERY:
            self._measured = now
            self._measure(now)

    def _measure(self, now: float) -> None:
        here = self._here()
        if not here:
            self._hours = {}
            return
        retention = Retention.of(self._topics.settings(self._names.input))
        positions = self._admin.positions(self._names.input, [partition["partition"] for partition in here])
        hours: dict[int, float] = {}
        for partition in here:
            number = partition["partition"]
            if number in positions:
                needed = max(0, positions[number] - (partition.get("gap") or 0))
                hours[number] = self._hours_of(number, needed, retention, now)
        self._hours = hours
        least = min(hours.values(), default=math.inf)
        if least < _NEAR * retention.milliseconds / 3_600_000 and now - self._warned >= _TELL_EVERY:
            self._warned = now
            worst = min(hours, key=hours.__getitem__)
            self._log.warning("retention_near", partition=worst, hours=round(least, 2), topic=self._names.input)

    def _hours_of(self, partition: int, needed: int, retention: Retention, now: float) -> float:
        topic = self._names.input
        low, end = self._admin.bounds(topic, partition, self._settings.kafka.socket_timeout, self._ending.is_set)
        rate = self._rates.setdefault(partition, Rate())
        rate.saw(now, end)
        if needed < low:
            return 0.0
        moment = self._sample(partition, needed, end) if needed < end and retention != Retention() else None
        ahead = Ahead(max(0, end - needed), moment)
        return hours_left(retention, ahead, self._size, rate.per_second, time.time())

    def _sample(self, partition: int, start: int, end: int) -> int | None:
        """The timestamp of the next record; and learns how large records are."""
        reader = KafkaReader(self._settings, self._names.group, self._admin, self._ending.is_set, time.monotonic)
        try:
            for batch in reader.read(self._names.input, partition, start, min(end, start + _SAMPLE), _SAMPLE):
                sizes = [len(message.value() or b"") + len(message.key() or b"") for message in batch]
                self._size = max(self._size, RECORD_OVERHEAD + sum(sizes) / len(sizes))
                return int(batch[0].timestamp()[1])
        finally:
            reader.close()
        return None


def _error(finding: Finding, topic: str, partition: int, position: int) -> StateholdError:
    if finding.kind is TopicMissing:
        return TopicMissing(f"{topic}[{partition}]@{position}: {finding.text}")
    assert issubclass(finding.kind, (TopicReplaced, PartitionCountChanged))
    return finding.kind(finding.text, topic=topic, partition=partition, position=position)
