"""The figures of one service, in a registry of their own: several services in one process do not mix.

Counters and histograms are prometheus_client's, moved once per batch or commit. Gauges are kept as plain values, or
asked for when somebody scrapes, and go away with their partition: no stale series.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from statehold.common.version import __version__
from statehold.telemetry.metrics import BUILD, DECLARED, Counter, Gauge, Histogram, Metric


class Sample(NamedTuple):
    """A gauge that is asked for at a scrape; `labels` without the service, with the partition where there is one."""

    metric: Gauge
    labels: tuple[str, ...]
    value: float


class Meters:
    """Moves the metrics of a service, or of one of its partitions. Any thread; nothing blocks."""

    def __init__(self, owner: ServiceMetrics, *bound: str) -> None:
        self._owner, self._bound = owner, bound
        self._children: dict[tuple[Metric, tuple[str, ...]], Any] = {}
        #: gauges by metric and labels
        self.levels: dict[tuple[Gauge, tuple[str, ...]], float] = {}

    def set(self, metric: Gauge, value: float, *labels: str) -> None:
        """From now on the gauge has this value."""
        self.levels[metric, labels] = value

    def inc(self, metric: Counter, by: float = 1, *labels: str) -> None:
        self._child(metric, labels).inc(by)

    def observe(self, metric: Histogram, value: float, *labels: str) -> None:
        self._child(metric, labels).observe(value)

    def samples(self) -> Iterator[Sample]:
        for (metric, labels), value in self.levels.copy().items():
            yield Sample(metric, (*self._bound, *labels), value)

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        child = self._children.get((metric, labels))
        if child is None:
            child = self._children[metric, labels] = self._owner.child(metric, (*self._bound, *labels))
        return child

    def _begin(self, *, of_partition: bool) -> None:
        """Series whose labels are known are there from the beginning: their first step is then an increase."""
        for metric in DECLARED:
            if metric.of_partition == of_partition and not isinstance(metric, Gauge):
                for labels in metric.known:
                    self._child(metric, labels)


class PartitionMetrics(Meters):
    """The metrics of one assignment of one partition."""

    def __init__(self, owner: ServiceMetrics, partition: int) -> None:
        super().__init__(owner, str(partition))
        self._partition = partition
        self._begin(of_partition=True)

    def forget(self) -> None:
        """The partition has gone, and its gauges with it."""
        self._owner.forget(self._partition, self)


class ServiceMetrics(Collector):
    """Register it with any other registry to have its series there as well; `registry` is one of its own."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._made = CollectorRegistry()
        self._kept: dict[Metric, Any] = {
            metric: _make(metric, self._made) for metric in DECLARED if not isinstance(metric, Gauge)
        }
        self._partitions: dict[int, PartitionMetrics] = {}
        self._asked: list[Callable[[], Iterable[Sample]]] = []
        #: of the service as a whole
        self.service = Meters(self)
        self.service._begin(of_partition=False)
        self.service.set(BUILD, 1, __version__, platform.python_version())
        #: all of it, and this process's memory, CPU and descriptors
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def partition(self, partition: int) -> PartitionMetrics:
        """A new assignment: gauges of an older one are gone."""
        made = self._partitions[partition] = PartitionMetrics(self, partition)
        return made

    def forget(self, partition: int, meters: PartitionMetrics) -> None:
        if self._partitions.get(partition) is meters:
            self._partitions.pop(partition, None)

    def ask(self, samples: Callable[[], Iterable[Sample]]) -> None:
        """Called at each scrape, by the scraping thread; what it raises fails the scrape."""
        self._asked.append(samples)

    def child(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        return self._kept[metric].labels(self._service, *labels)

    # prometheus_client's side

    def describe(self) -> Iterator[Family]:
        """Names nothing, so that a host's registry takes several services; registering collects nothing."""
        return iter(())

    def collect(self) -> Iterator[Family]:
        """In the order of the page; the times at which counters began are left out, they would double the series."""
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
            found[metric].add_metric([self._service, *labels], value)
        return dict(found)

    def _gauges(self) -> Iterator[Sample]:
        yield from self.service.samples()
        for _, meters in sorted(self._partitions.copy().items()):
            yield from meters.samples()
        for ask in self._asked:
            yield from ask()


def _make(metric: Metric, registry: CollectorRegistry) -> Any:
    if isinstance(metric, Histogram):
        return prometheus.Histogram(
            metric.name, metric.text, metric.all_labels, registry=registry, buckets=metric.buckets
        )
    return prometheus.Counter(metric.name, metric.text, metric.all_labels, registry=registry)
