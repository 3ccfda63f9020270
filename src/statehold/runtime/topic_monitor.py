"""Monitors the topics of a running service: are they still the same, and when will retention delete the next record?

Runs on its own thread, never in the processing path. A change fails the live partitions with a typed error, because
they must not continue with a state whose input, changelog or keys have changed (rule A4).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import PartitionCountChanged, StateholdError, TopicMissing, TopicReplaced
from statehold.kafka.admin.admin import Admin, TopicFacts
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.clients.reader import KafkaReader
from statehold.ports import Cancelled, OutOfRange
from statehold.runtime.retention_forecast import RECORD_OVERHEAD, Rate, Retention, UnreadRecords, hours_left
from statehold.telemetry import metrics
from statehold.telemetry.log_events import Log
from statehold.telemetry.registry import GaugeSample

#: Seconds after which a finding must be confirmed.
_AGAIN: Final = 0.5
#: Seconds between two measurements of the retention.
_MEASURE_EVERY: Final = 60.0
#: Number of records whose sizes are measured.
_SAMPLE: Final = 100
#: Share of retention.ms below which a warning is logged, and seconds between two warnings.
_NEAR, _REPORT_EVERY = 0.25, 3600.0

#: Fails the live partitions; the argument maps (partition, next offset) to the error.
Fail = Callable[[Callable[[int, int], StateholdError]], object]


class TopicChange(NamedTuple):
    """A change of a topic and the class of its error."""

    kind: type[StateholdError]
    text: str


def compare(names: Names, known: TopicFacts, now: TopicFacts | None) -> TopicChange | None:
    """Return the change of a topic since the service started; None without one (pure)."""
    ours = known.name in (*names.inputs, names.changelog, names.snapshot)
    if now is None:
        advice = (
            "run `statehold snapshot restore` with a backup, or see `statehold repair --help`"
            if ours
            else f"create it with {known.partitions} partitions, then run `statehold retry all`"
        )
        return TopicChange(TopicMissing, f"topic {known.name} does not exist any more. Next: {advice}")
    if ours and now.id != known.id:
        repair = "accept-gap" if known.name in names.inputs else "rebase"
        processed = " No record of the new topic was processed." if known.name in names.inputs else ""
        return TopicChange(
            TopicReplaced,
            f"topic {known.name} was deleted and created again (id {known.id} before, {now.id} now): its offsets are "
            f"other records.{processed} Next: restore the old topic; or stop the service and run "
            f"`statehold repair {repair} MODULE:SERVICE --why TEXT --dry-run`, which shows where it would continue",
        )
    if known.name in names.inputs and now.partitions != known.partitions:
        return TopicChange(
            PartitionCountChanged,
            f"{known.name} has {now.partitions} partitions, it had {known.partitions}: keys have moved. The state is "
            f"intact. Next: stop the service and the producers, then run `statehold state repartition MODULE:SERVICE "
            f"--to {now.partitions} --why TEXT --yes`",
        )
    return None


class TopicMonitor:
    """Compares topics and forecasts retention on its own thread. Any thread may call `report` and `gauges`."""

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
        """`here` returns the status of the partitions of this process."""
        self._settings, self._names, self._admin, self._facts = settings, names, admin, facts
        self._log, self._fail, self._here = log, fail, here
        self._topics = TopicAdmin(admin)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"topology-{names.service}", daemon=True)
        self._reported: str | None = None
        self._rates: dict[tuple[str, int], Rate] = {}
        self._size = float(RECORD_OVERHEAD)
        self._measured = -math.inf
        #: when a warning was last logged, by input
        self._warned: dict[str, float] = {}
        #: partition -> lower bound in hours until retention deletes its next record.
        self._hours: dict[int, float] = {}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread without waiting; a request in progress has its own deadline."""
        self._ending.set()

    def report(self, status: dict[str, Any]) -> dict[str, Any]:
        """Add the topic change and the retention to the status; hours are None if not measured or without a limit."""
        status["topology"] = self._reported
        for partition in status["partitions"]:
            hours = self._hours.get(partition["partition"], math.inf)
            partition["retention_hours"] = round(hours, 2) if math.isfinite(hours) else None
        return status

    def gauges(self) -> Iterator[GaugeSample]:
        here = {partition["partition"] for partition in self._here()}
        for partition, hours in self._hours.copy().items():
            if partition in here:
                yield GaugeSample(metrics.RETENTION_LEFT, (str(partition),), hours * 3600)

    # The thread

    def _run(self) -> None:
        while not self._ending.wait(self._settings.service.topology_interval):
            try:
                self._look()
                self._measure_at_times(time.monotonic())
            except (StateholdError, OutOfRange, Cancelled):
                continue  # the next comparison may succeed
            except Exception as error:  # noqa: BLE001 - the monitor continues after a bug in itself
                self._log.error("thread_died", thread="topology", cause=repr(error), exc_info=True)

    def _look(self) -> None:
        found = self._findings()
        if found and not self._ending.wait(_AGAIN):
            again = self._findings()
            found = [finding for finding in found if finding in again]
        if not found:
            self._reported = None
            return
        finding = found[0]
        if finding.kind is TopicMissing and not self._confirmed_missing():
            return
        if self._reported != finding.text:
            self._reported = finding.text
            self._log.error("topology_changed", error=finding.kind.__name__, cause=finding.text)
        self._fail(lambda partition, position: _error(finding, self._names.input, partition, position))

    def _findings(self) -> list[TopicChange]:
        self._admin.require_reachable(self._names.input)
        now = self._admin.describe(list(self._facts), self._ending.is_set)
        findings = [compare(self._names, known, now[topic]) for topic, known in self._facts.items()]
        return [finding for finding in findings if finding is not None]

    def _confirmed_missing(self) -> bool:
        """Ask a second broker, because the metadata of one broker may be stale."""
        try:
            for topic in self._facts:
                self._admin.require_existing(topic)
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
        hours: dict[int, float] = {}
        for topic in self._names.inputs:
            retention = Retention.of(self._topics.settings(topic))
            found = self._hours_left(topic, here, retention, now)
            self._warn(topic, found, retention, now)
            hours |= {number: min(left, hours.get(number, math.inf)) for number, left in found.items()}
        self._hours = hours

    def _hours_left(
        self, topic: str, here: Sequence[dict[str, Any]], retention: Retention, now: float
    ) -> dict[int, float]:
        """Return the hours until retention deletes the next record of each partition of an input."""
        positions = self._admin.positions(topic, [partition["partition"] for partition in here])
        hours: dict[int, float] = {}
        for partition in here:
            number = partition["partition"]
            if number in positions:
                needed = max(0, positions[number] - (partition.get("gap") or 0))
                hours[number] = self._hours_of(topic, number, needed, retention, now)
        return hours

    def _warn(self, topic: str, hours: dict[int, float], retention: Retention, now: float) -> None:
        """Log a warning once an hour if a record is near its deletion."""
        least = min(hours.values(), default=math.inf)
        if (
            least < _NEAR * retention.milliseconds / 3_600_000
            and now - self._warned.get(topic, -math.inf) >= _REPORT_EVERY
        ):
            self._warned[topic] = now
            worst = min(hours, key=hours.__getitem__)
            self._log.warning("retention_near", partition=worst, hours=round(least, 2), topic=topic)

    def _hours_of(self, topic: str, partition: int, needed: int, retention: Retention, now: float) -> float:
        low, end = self._admin.bounds(topic, partition, self._settings.kafka.socket_timeout, self._ending.is_set)
        rate = self._rates.setdefault((topic, partition), Rate())
        rate.saw(now, end)
        if needed < low:
            return 0.0
        moment = self._sample(topic, partition, needed, end) if needed < end and retention != Retention() else None
        ahead = UnreadRecords(max(0, end - needed), moment)
        return hours_left(retention, ahead, self._size, rate.per_second, time.time())

    def _sample(self, topic: str, partition: int, start: int, end: int) -> int | None:
        """Return the timestamp of the next record, and measure the mean record size."""
        with closing(
            KafkaReader(self._settings, self._names.group, self._admin, self._ending.is_set, time.monotonic)
        ) as reader:
            for batch in reader.read(topic, partition, start, min(end, start + _SAMPLE), _SAMPLE):
                sizes = [len(message.value() or b"") + len(message.key() or b"") for message in batch]
                self._size = max(self._size, RECORD_OVERHEAD + sum(sizes) / len(sizes))
                return int(batch[0].timestamp()[1])
        return None


def _error(finding: TopicChange, topic: str, partition: int, position: int) -> StateholdError:
    if finding.kind is TopicMissing:
        return TopicMissing(f"{topic}[{partition}]@{position}: {finding.text}")
    assert issubclass(finding.kind, (TopicReplaced, PartitionCountChanged))
    return finding.kind(finding.text, topic=topic, partition=partition, position=position)
