"""Generates docs/reference/metrics.md from the declared metrics."""

from __future__ import annotations

from collections.abc import Iterator

from statehold.telemetry.metrics import DECLARED, Histogram, Metric

_INTRODUCTION = """\
# Metrics

This file is generated: `python -m script.generate`. A test compares the two.

Every service has its own registry, `service.metrics.registry`. An application that already exports a registry adds the
series of each service to it by `service.metrics.register()`, or `register(registry)` for another one than
`prometheus_client.REGISTRY`; `unregister` takes them out. Names end with their unit. Each series has the label
`service` (the consumer group), and series of a partition also have `partition`. No label holds a key or an error's
text, so the number of series is a small multiple of the number of partitions.

A gauge disappears with its partition. Counters and histograms remain until the process ends, so `rate()` and sums
include counts from before a rebalance. Values change once per batch or commit. The queue length, lag and restore
progress are computed at each scrape.

In addition, `service.metrics.registry` has the metrics of this process (Linux): `process_resident_memory_bytes`,
`process_virtual_memory_bytes`, `process_cpu_seconds_total`, `process_open_fds`, `process_max_fds`,
`process_start_time_seconds`.

The ops server of `statehold run --processes N` has the series of all processes, each with the label `process`: the
number of the process, or `supervisor`.
"""


def document() -> str:
    """The whole page as Markdown."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|", *map(_row, DECLARED)]
    return "\n".join([_INTRODUCTION, *rows, "", *_buckets(), ""])


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.all_labels if label != "service")
    return f"| `{metric.name}` | {type(metric).__name__.lower()} | {labels} | {metric.text} |"


def _buckets() -> Iterator[str]:
    yield "Histograms have these buckets (upper bounds), and `_sum` and `_count`:\n"
    for metric in DECLARED:
        if isinstance(metric, Histogram):
            yield f"- `{metric.name}`: {', '.join(f'{bound:,g}' for bound in metric.buckets)}"
