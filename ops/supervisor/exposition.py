"""Makes one `/metrics` of those of the processes: each series gets the label `process`.

It merges lines and does not parse numbers: prometheus_client's parser takes a second of a core for 200 partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from statehold.ops.supervisor.aggregate import ProcessView
from statehold.telemetry.metrics import PROCESS_RESTARTS, READY

#: the label's value for the supervisor's own memory and processor time
_OWN: Final = "supervisor"
_END: Final = "# EOF"


class SupervisorFamilies(Collector):
    """What the supervisor adds: its own memory, restarts, and that a process without an answer is not ready."""

    def __init__(self, service: str, views: Sequence[ProcessView], answered: Mapping[int, str]) -> None:
        self._service, self._views, self._answered = service, views, answered

    def collect(self) -> Iterator[Metric]:
        ready = GaugeMetricFamily(READY.name, READY.text, labels=("service", "process"))
        restarts = CounterMetricFamily(
            PROCESS_RESTARTS.name.removesuffix("_total"), PROCESS_RESTARTS.text, labels=PROCESS_RESTARTS.all_labels
        )
        for view in self._views:
            labels = [self._service, str(view.number)]
            restarts.add_metric(labels, view.restarts)
            if view.number not in self._answered:
                ready.add_metric(labels, 0.0)
        yield ready
        yield restarts
        for family in ProcessCollector(registry=None).collect():
            family.samples = [each._replace(labels={**each.labels, "process": _OWN}) for each in family.samples]
            yield family


@dataclass(slots=True)
class _Family:
    """The lines of a metric: its HELP, TYPE and UNIT once, and the samples of all processes."""

    head: dict[str, str] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)


def registry_of(service: str, views: Sequence[ProcessView], answered: Mapping[int, str]) -> CollectorRegistry:
    """Return what the supervisor adds, for an encoder of prometheus_client."""
    registry = CollectorRegistry()
    registry.register(SupervisorFamilies(service, views, answered))
    return registry


def merged(texts: Mapping[int, str], own: str) -> str:
    """Merge expositions of one format, as prometheus_client writes them. `own` has the label already."""
    families: dict[str, _Family] = {}
    for number, text in texts.items():
        _add(families, text, f'process="{number}"')
    _add(families, own, "")
    lines = [line for each in families.values() if each.samples for line in (*each.head.values(), *each.samples)]
    ends = own.rstrip("\n").endswith(_END)
    return "\n".join([*lines, *([_END] if ends else []), ""])


def _add(families: dict[str, _Family], text: str, label: str) -> None:
    family = _Family()
    for line in text.split("\n"):
        if line == _END or not line:
            continue
        if line.startswith("# "):
            kind, name = line.split(" ", 3)[1:3]
            family = families.setdefault(name, _Family())
            family.head.setdefault(kind, line)
        else:
            family.samples.append(_labelled(line, label) if label else line)


def _labelled(line: str, label: str) -> str:
    name, space, value = line.partition(" ")
    if "{" not in name:
        return f"{name}{{{label}}}{space}{value}"
    name, _, rest = line.partition("{")
    return f"{name}{{{label},{rest}"
