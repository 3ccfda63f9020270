"""Makes one `/metrics` of those of the processes: each series gets the label `process`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from statehold.ops.supervisor.aggregate import ProcessView
from statehold.telemetry.metrics import PROCESS_RESTARTS, READY

LABEL: Final = "process"
#: the label's value for the supervisor's own memory and processor time
_OWN: Final = "supervisor"


class ProcessFamilies(Collector):
    """The families of all processes: each once, with the series of all, as the exposition formats demand."""

    def __init__(self, service: str, views: Sequence[ProcessView], texts: Mapping[int, str]) -> None:
        """`texts`: what each process has answered to a scrape, in the text format."""
        self._service, self._views, self._texts = service, views, texts

    def collect(self) -> Iterator[Metric]:
        """Yield them in the order of the first process; a process that does not answer is not ready."""
        families: dict[str, Metric] = {}
        for number, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                _add(families, family, str(number))
        for family in ProcessCollector(registry=None).collect():
            _add(families, family, _OWN)
        for number in [view.number for view in self._views if view.number not in self._texts]:
            ready = GaugeMetricFamily(READY.name, READY.text, labels=READY.all_labels)
            ready.add_metric([self._service], 0.0)
            _add(families, ready, str(number))
        yield from families.values()
        yield self._restarts()

    def _restarts(self) -> Metric:
        restarts = CounterMetricFamily(
            PROCESS_RESTARTS.name.removesuffix("_total"), PROCESS_RESTARTS.text, labels=PROCESS_RESTARTS.all_labels
        )
        for view in self._views:
            restarts.add_metric([self._service, str(view.number)], view.restarts)
        return restarts


def registry_of(service: str, views: Sequence[ProcessView], texts: Mapping[int, str]) -> CollectorRegistry:
    """Return what an encoder of prometheus_client writes."""
    registry = CollectorRegistry()
    registry.register(ProcessFamilies(service, views, texts))
    return registry


def _add(families: dict[str, Metric], family: Metric, process: str) -> None:
    known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
    known.samples += [
        sample._replace(labels={**sample.labels, LABEL: process})
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
