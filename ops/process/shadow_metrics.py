"""The metrics of `statehold shadow`, made at each scrape from its newest report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from statehold.shadow.report import ShadowReport

#: a topic or table, after the labels of every metric
_RESULT: Final = ("kind", "name")


class ShadowMetrics(Collector):
    """Exports what `report` returns. Any thread."""

    def __init__(self, service: str, report: Callable[[], ShadowReport]) -> None:
        self._service, self._report = service, report
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the text in a form that the client accepts, and its type."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        following = _gauge("shadow_following", "1 while the partition follows the service, else 0.")
        age = _gauge(
            "shadow_age_seconds",
            "Time since everything that the service had committed was compared; absent before that.",
        )
        starts = _counter("shadow_starts", "Starts from a stored state.")
        records = _counter("shadow_records", "Input records that the new code has handled.")
        handler = _counter("shadow_handler_seconds", "Time in the handler of the new code.")
        compared = _counter("shadow_compared", "Results that were compared.", *_RESULT)
        differences = _gauge(
            "shadow_differences", "Results that differ; of a table its keys that differ now.", *_RESULT
        )
        for each in self._report().partitions:
            labels = [self._service, str(each.partition)]
            following.add_metric(labels, float(each.phase == "following"))
            if each.age >= 0:
                age.add_metric(labels, each.age)
            starts.add_metric(labels, each.starts)
            records.add_metric(labels, each.records)
            handler.add_metric(labels, each.handler_seconds)
            for one in each.compared:
                compared.add_metric([*labels, one.kind, one.name], one.compared)
                differences.add_metric([*labels, one.kind, one.name], one.differ)
        yield from (following, age, starts, records, handler, compared, differences)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"statehold_{name}", text, labels=("service", "partition", *labels))


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"statehold_{name}", text, labels=("service", "partition", *labels))
