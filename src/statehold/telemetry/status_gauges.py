"""The gauges that are asked for at a scrape: what `Service.status` says, as numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from statehold.telemetry import metrics
from statehold.telemetry.registry import Sample


def of_status(status: dict[str, Any], heartbeat: float | None) -> Iterator[Sample]:
    """`heartbeat` is the last turn of the manager's loop in seconds since 1970; None while it has made none."""
    yield Sample(metrics.READY, (), float(status["ready"]))
    yield Sample(metrics.PARTITIONS, (), len(status["partitions"]))
    outage = status.get("outage")
    yield Sample(metrics.OUTAGE, (), outage["seconds"] if outage else 0.0)
    yield Sample(metrics.STUCK, (), len(status.get("stuck", ())))
    if heartbeat is not None:
        yield Sample(metrics.LOOP_TIME, (), heartbeat)
    for partition in status["partitions"]:
        yield from _of_partition(partition)
    for reference in status.get("references", ()):
        yield Sample(metrics.REFERENCE_ROWS, (reference["topic"],), reference["rows"])
        if reference["age"] is not None:
            yield Sample(metrics.REFERENCE_AGE, (reference["topic"],), reference["age"])
    for copy in status.get("standbys", ()):
        yield Sample(metrics.STANDBY, (str(copy["partition"]),), float(copy["loading"] is None))
        if copy["age"] is not None:
            yield Sample(metrics.STANDBY_AGE, (str(copy["partition"]),), copy["age"])


def _of_partition(partition: dict[str, Any]) -> Iterator[Sample]:
    label = str(partition["partition"])
    yield Sample(metrics.PHASE, (label, partition["phase"]), 1)
    if partition.get("paused"):
        yield Sample(metrics.PAUSED, (label,), 1)
    yield Sample(metrics.MAILBOX, (label,), partition["mailbox"])
    for metric, field in ((metrics.LAG, "lag"), (metrics.HIDDEN, "hidden")):
        if partition[field] is not None:
            yield Sample(metric, (label,), partition[field])
    live = partition.get("live")
    if live is not None:
        since = live["effects_since"]
        yield Sample(metrics.EFFECTS_OWED, (label,), live["effects"])
        if live["later"] is not None:
            yield Sample(metrics.RETRY_WAITING, (label,), live["later"])
        yield Sample(metrics.EFFECT_AGE, (label,), max(0.0, time.time() - since) if since else 0.0)
    restore = partition["restore"]
    if restore is not None:
        whole = restore["end"] - restore["begin"]
        done = (restore["position"] - restore["begin"]) / whole if whole > 0 else 1.0
        yield Sample(metrics.RESTORE_DONE, (label, restore["step"]), min(1.0, max(0.0, done)))
