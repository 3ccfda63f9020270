"""The metrics of one service, in a registry of its own, so that several services in one process do not mix.

Counters and histograms are prometheus_client's and change once per batch or commit. Gauges are stored as plain values
or computed at a scrape. They disappear with their partition, so that no series is stale.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from statehold.common.version import __version__
from statehold.telemetry import metrics
from statehold.telemetry.metrics import BUILD, DECLARED, Counter, Gauge, Histogram, Metric


class GaugeSample(NamedTuple):
    """The value of a gauge that is computed at a scrape. `labels` include the partition, but not the service."""

    metric: Gauge
    labels: tuple[str, ...]
    value: float


class Meters:
    """Updates the metrics of a service or of one of its partitions. Any thread; nothing blocks."""

    def __init__(self, owner: ServiceMetrics, *bound: str) -> None:
        self._owner, self._bound = owner, bound
        self._children: dict[tuple[Metric, tuple[str, ...]], Any] = {}
        #: Values of the gauges by metric and labels.
        self.levels: dict[tuple[Gauge, tuple[str, ...]], float] = {}
        # Every series with known labels begins at 0, so that Prometheus sees its first change as an increase.
        for metric in DECLARED:
            if metric.of_partition == bool(bound) and not isinstance(metric, Gauge):
                for labels in zip(metric.values) if metric.labels else [()]:
                    self._child(metric, labels)

    def set(self, metric: Gauge, value: float, *labels: str) -> None:
        self.levels[metric, labels] = value

    def inc(self, metric: Counter, by: float = 1, *labels: str) -> None:
        self._child(metric, labels).inc(by)

    def observe(self, metric: Histogram, value: float, *labels: str) -> None:
        self._child(metric, labels).observe(value)

    def samples(self) -> Iterator[GaugeSample]:
        for (metric, labels), value in self.levels.copy().items():
            yield GaugeSample(metric, (*self._bound, *labels), value)

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        child = self._children.get((metric, labels))
        if child is None:
            owner = self._owner
            child = owner.families[metric].labels(owner.service_name, *self._bound, *labels)
            self._children[metric, labels] = child
        return child


class PartitionMetrics(Meters):
    """The metrics of one assignment of one partition."""

    def __init__(self, owner: ServiceMetrics, partition: int) -> None:
        super().__init__(owner, str(partition))
        self._partition = partition
        #: what a commit moves
        self._commit: tuple[Callable[[float], None], ...] = ()

    def committed(
        self,
        *,
        seconds: float,
        handler_seconds: float,
        records: int,
        outputs: int,
        increment_bytes: int,
        position: int,
        keys: int,
        newest: int,
    ) -> None:
        """Count a transaction; `newest` is its last record's time in milliseconds since 1970, 0 without records."""
        counted = self._commit or self._commit_children()
        steps = (seconds, records, increment_bytes, handler_seconds, 1, records, outputs, increment_bytes)
        for move, by in zip(counted, steps, strict=True):
            move(by)
        levels = self.levels
        levels[metrics.POSITION, ()], levels[metrics.KEYS, ()] = position, keys
        if newest > 0:
            levels[metrics.RECORD_TIME, ()] = newest / 1000

    def _commit_children(self) -> tuple[Callable[[float], None], ...]:
        self._commit = (
            self._child(metrics.COMMIT_SECONDS, ()).observe,
            self._child(metrics.COMMIT_RECORDS, ()).observe,
            self._child(metrics.COMMIT_BYTES, ()).observe,
            self._child(metrics.HANDLER_SECONDS, ()).observe,
            self._child(metrics.TRANSACTIONS, ("committed",)).inc,
            self._child(metrics.RECORDS, ()).inc,
            self._child(metrics.OUTPUTS, ()).inc,
            self._child(metrics.INCREMENT_BYTES, ()).inc,
        )
        return self._commit

    def forget(self) -> None:
        """Remove the partition's gauges."""
        self._owner.forget(self._partition, self)


class ServiceMetrics(Collector):
    """The metrics of one service. `registry` is its own registry; `register` adds them to an application's."""

    def __init__(self, service: str) -> None:
        self.service_name = service
        self._made = CollectorRegistry()
        #: the counters and histograms
        self.families: dict[Metric, Any] = {
            metric: _make(metric, self._made) for metric in DECLARED if not isinstance(metric, Gauge)
        }
        self._partitions: dict[int, PartitionMetrics] = {}
        self._asked: list[Callable[[], Iterable[GaugeSample]]] = []
        #: Metrics without a partition.
        self.service = Meters(self)
        self.service.set(BUILD, 1, __version__, platform.python_version())
        #: Every metric of the service, and this process's memory, CPU and file descriptors.
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def partition(self, partition: int) -> PartitionMetrics:
        """Return the metrics of a new assignment, whose gauges replace those of an older one."""
        made = self._partitions[partition] = PartitionMetrics(self, partition)
        return made

    def forget(self, partition: int, meters: PartitionMetrics) -> None:
        if self._partitions.get(partition) is meters:
            self._partitions.pop(partition, None)

    def ask(self, samples: Callable[[], Iterable[GaugeSample]]) -> None:
        """Add a function that the scraping thread calls at each scrape; its error fails the scrape."""
        self._asked.append(samples)

    def register(self, registry: CollectorRegistry = prometheus.REGISTRY) -> None:
        """Export the metrics with those of an application. Several services may share its registry.

        :raises ValueError: the registry has metrics of a service of this name, or foreign metrics of these names.
        """
        with _SHARING:
            shared = _SHARED.get(registry)
            if shared is None:
                shared = _SharedFamilies()
                registry.register(shared)
                _SHARED[registry] = shared
            if any(each.service_name == self.service_name for each in shared.services):
                raise ValueError(f"{self.service_name}: the registry has metrics of a service of this name already")
            shared.services = (*shared.services, self)

    def unregister(self, registry: CollectorRegistry = prometheus.REGISTRY) -> None:
        """Undo `register`."""
        with _SHARING:
            shared = _SHARED[registry]
            shared.services = tuple(each for each in shared.services if each is not self)
            if not shared.services:
                registry.unregister(_SHARED.pop(registry))

    # prometheus_client's side

    def describe(self) -> Iterator[Family]:
        """Name the families, so that a registry rejects a second service, which would repeat them (see `register`)."""
        return _without_samples()

    def collect(self) -> Iterator[Family]:
        """Yield the families in declared order, without `_created` samples, which would double the series."""
        counted = {family.name: family for family in self._made.collect()}
        levels = self._levels()
        for metric in DECLARED:
            family = levels.get(metric) or counted.get(metric.name.removesuffix("_total"))
            if family is None:
                continue
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            if family.samples:
                yield family

    def _levels(self) -> dict[Metric, Family]:
        found: dict[Metric, GaugeMetricFamily] = {}
        for metric, labels, value in self._gauges():
            if metric not in found:
                found[metric] = GaugeMetricFamily(metric.name, metric.text, labels=metric.all_labels)
            found[metric].add_metric([self.service_name, *labels], value)
        return dict(found)

    def _gauges(self) -> Iterator[GaugeSample]:
        yield from self.service.samples()
        for _, meters in sorted(self._partitions.copy().items()):
            yield from meters.samples()
        for ask in self._asked:
            yield from ask()


class _SharedFamilies(Collector):
    """Several services in one registry: one family has the series of all, as the exposition formats demand."""

    def __init__(self) -> None:
        self.services: tuple[ServiceMetrics, ...] = ()

    def describe(self) -> Iterator[Family]:
        return _without_samples()

    def collect(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for service in self.services:
            for family in service.collect():
                if family.name in families:
                    families[family.name].samples += family.samples
                else:
                    families[family.name] = family
        yield from families.values()


_SHARING: Final = threading.Lock()
_SHARED: Final[WeakKeyDictionary[CollectorRegistry, _SharedFamilies]] = WeakKeyDictionary()


def _without_samples() -> Iterator[Family]:
    for metric in DECLARED:
        yield Family(metric.name.removesuffix("_total"), metric.text, type(metric).__name__.lower())


def _make(metric: Metric, registry: CollectorRegistry) -> Any:
    if isinstance(metric, Histogram):
        return prometheus.Histogram(
            metric.name, metric.text, metric.all_labels, registry=registry, buckets=metric.buckets
        )
    return prometheus.Counter(metric.name, metric.text, metric.all_labels, registry=registry)
