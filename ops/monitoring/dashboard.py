"""The Grafana dashboard, made from the declared metrics: kind and unit say how each is drawn, its text explains it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from statehold.telemetry import metrics
from statehold.telemetry.metrics import DECLARED, Counter, Histogram, Metric

_ONLY: Final = '{service=~"$service"}'
_WINDOW: Final = "$__rate_interval"
_UNITS: Final = {"_seconds": "s", "_bytes": "bytes", "_ratio": "percentunit"}


@dataclass(frozen=True, slots=True)
class Panel:
    """`lines` are expressions and the legend of each."""

    title: str
    text: str
    lines: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12


def panel(metric: Metric) -> Panel:
    """How a metric is drawn when nothing else is said."""
    title = metric.name.removeprefix("statehold_").removesuffix("_total").replace("_", " ")
    unit = next((unit for end, unit in _UNITS.items() if metric.name.removesuffix("_total").endswith(end)), "short")
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.all_labels)
    by = ", ".join(metric.all_labels)
    if isinstance(metric, Histogram):
        return Panel(f"{title}: median and 99%", metric.text, tuple(_quantiles(metric)), unit)
    if isinstance(metric, Counter):
        per = "Bps" if unit == "bytes" else "short"
        rate = f"sum by ({by}) (rate({metric.name}{_ONLY}[{_WINDOW}]))"
        return Panel(f"{title} a second", metric.text, ((rate, legend),), per)
    if metric.name.endswith("_timestamp_seconds"):
        title = title.removesuffix(" timestamp seconds")
        return Panel(f"since {title}", metric.text, ((f"time() - {metric.name}{_ONLY}", legend),), "s")
    return Panel(title, metric.text, ((f"{metric.name}{_ONLY}", f"{legend} {{{{instance}}}}"),), unit)


def _quantiles(metric: Histogram) -> Iterator[tuple[str, str]]:
    by = ", ".join(("service", *metric.labels, "le"))
    for share, name in ((0.5, "median"), (0.99, "99%")):
        rate = f"sum by ({by}) (rate({metric.name}_bucket{_ONLY}[{_WINDOW}]))"
        legend = " ".join(f"{{{{{label}}}}}" for label in ("service", *metric.labels))
        yield f"histogram_quantile({share}, {rate})", f"{legend} {name}"


def _stat(title: str, text: str, expression: str, unit: str = "short") -> Panel:
    return Panel(title, text, ((expression, "{{service}}"),), unit, "stat", 4)


_OVERVIEW: Final = (
    _stat(
        "live",
        "Partitions that are live.",
        f'sum by (service) ({metrics.PHASE.name}{{service=~"$service",phase="live"}})',
    ),
    _stat("of", metrics.INPUT_PARTITIONS.text, f"max by (service) ({metrics.INPUT_PARTITIONS.name}{_ONLY})"),
    _stat("records/s", metrics.RECORDS.text, f"sum by (service) (rate({metrics.RECORDS.name}{_ONLY}[{_WINDOW}]))"),
    _stat("behind", metrics.LAG.text, f"sum by (service) ({metrics.LAG.name}{_ONLY})"),
    _stat("outage", metrics.OUTAGE.text, f"max by (service) ({metrics.OUTAGE.name}{_ONLY})", "s"),
    _stat(
        "retention left", metrics.RETENTION_LEFT.text, f"min by (service) ({metrics.RETENTION_LEFT.name}{_ONLY})", "s"
    ),
    Panel(
        "partitions by phase",
        metrics.PHASE.text,
        ((f"sum by (service, phase) ({metrics.PHASE.name}{_ONLY})", "{{service}} {{phase}}"),),
    ),
    Panel("memory", "Resident memory.", (('process_resident_memory_bytes{job="statehold"}', "{{instance}}"),), "bytes"),
    Panel(
        "CPU", "Cores in use.", ((f'rate(process_cpu_seconds_total{{job="statehold"}}[{_WINDOW}])', "{{instance}}"),)
    ),
)
#: the metrics of each row; what is in none comes last
_ROWS: Final[dict[str, Sequence[Metric]]] = {
    "Overview": (
        metrics.RECORDS,
        metrics.LAG,
        metrics.RECORD_TIME,
        metrics.FAILURES,
        metrics.READY,
        metrics.STUCK,
        metrics.RETENTION_LEFT,
        metrics.OUTAGE,
    ),
    "Takeover": (
        metrics.REBALANCES,
        metrics.PARTITIONS,
        metrics.TAKEOVER_SECONDS,
        metrics.RESTORE_DONE,
        metrics.RESTORE_PREDICTED,
        metrics.RESTORE_BUDGET,
    ),
    "Transactions": (
        metrics.TRANSACTIONS,
        metrics.COMMIT_SECONDS,
        metrics.COMMIT_RECORDS,
        metrics.COMMIT_BYTES,
        metrics.HANDLER_SECONDS,
        metrics.HIDDEN,
        metrics.OUTPUTS,
        metrics.POSITION,
    ),
    "Snapshots": (
        metrics.KEYS,
        metrics.STATE_BYTES,
        metrics.INCREMENT_BYTES,
        metrics.SINCE_FULL,
        metrics.FULLS,
        metrics.FULL_TIME,
        metrics.FULL_BYTES,
        metrics.FULL_PAUSE_SECONDS,
    ),
}
#: shown elsewhere: in a panel of their own making
_SHOWN: Final = (metrics.PHASE, metrics.INPUT_PARTITIONS)


def rows() -> dict[str, list[Panel]]:
    placed = {*_SHOWN, *(metric for row in _ROWS.values() for metric in row)}
    found = {title: [panel(metric) for metric in row] for title, row in _ROWS.items()}
    found["Overview"] = [*_OVERVIEW, *found["Overview"]]
    found["More"] = [panel(metric) for metric in DECLARED if metric not in placed]
    return found


def dashboard() -> str:
    """The dashboard as JSON that Grafana imports (schema 39, Grafana 10 and later); it asks for the data source."""
    document = {
        "uid": "statehold",
        "title": "statehold",
        "description": "Made by `python -m statehold.ops.monitoring` from the declared metrics.",
        "tags": ["statehold", "kafka"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_DATA_SOURCE, _SERVICE]},
        "annotations": {"list": []},
        "panels": list(_placed()),
    }
    return json.dumps(document, indent=1) + "\n"


_DATA: Final = {"type": "prometheus", "uid": "${datasource}"}
_DATA_SOURCE: Final = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "data source"}
_SERVICE: Final = {
    "name": "service",
    "type": "query",
    "datasource": _DATA,
    "query": {"query": f"label_values({metrics.BUILD.name}, service)", "refId": "service"},
    "refresh": 2,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
    "current": {"text": "All", "value": "$__all"},
}


def _placed() -> Iterator[dict[str, Any]]:
    """Row by row on Grafana's grid of 24 columns; ids count from 1."""
    number, top = 1, 0
    for title, panels in rows().items():
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}
        number, top, left = number + 1, top + 1, 0
        for each in panels:
            height = 4 if each.kind == "stat" else 8
            yield _drawn(each, number, {"x": left, "y": top, "w": each.width, "h": height})
            number, left = number + 1, left + each.width
            if left >= 24:
                left, top = 0, top + height
        top += 8 if left else 0


def _drawn(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _DATA,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _DATA, "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(panel.lines)
        ],
    }
