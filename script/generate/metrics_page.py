"""Generates docs/metrics.md from the declared metrics."""

from __future__ import annotations

from collections.abc import Iterator

from statehold.telemetry.metrics import DECLARED, Histogram, Metric

_INTRODUCTION = """\
# Metrics

This file is generated: `python -m script.generate`. A test compares the two.

Every service has a registry of its own, `service.metrics`. To have its series in a registry that an application exports
anyway: `prometheus_client.REGISTRY.register(service.metrics)`. Names carry their base unit; each series has the label
`service` (the consumer group), those of a partition also `partition`. No label holds a key or an error's text: there
are as many series as partitions times a few words.

A gauge goes away with its partition. Counters and histograms stay as long as the process lives: what was counted before
a rebalance is part of `rate()` and of sums. Figures move once per batch or commit; what needs a look (mailbox, lag,
restore) is looked for when somebody scrapes.

Beside these, `service.metrics.registry` has this process's own (Linux): `process_resident_memory_bytes`,
`process_virtual_memory_bytes`, `process_cpu_seconds_total`, `process_open_fds`, `process_max_fds`,
`process_start_time_seconds`.
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
