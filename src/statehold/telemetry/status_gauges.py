"""Computes gauges from `Service.status` at a scrape."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from statehold.telemetry import metrics
from statehold.telemetry.registry import GaugeSample


def of_status(status: dict[str, Any], heartbeat: float | None) -> Iterator[GaugeSample]:
    """Yield the gauges. `heartbeat` is the last turn of the manager's loop in seconds since 1970; None before it."""
    yield GaugeSample(metrics.READY, (), float(status["ready"]))
    yield GaugeSample(metrics.PARTITIONS, (), len(status["partitions"]))
    outage = status.get("outage")
    yield GaugeSample(metrics.OUTAGE, (), outage["seconds"] if outage else 0.0)
    yield GaugeSample(metrics.STUCK, (), len(status.get("stuck", ())))
    if heartbeat is not None:
        yield GaugeSample(metrics.LOOP_TIME, (), heartbeat)
    for partition in status["partitions"]:
        yield from _of_partition(partition)
    for reference in status.get("references", ()):
        yield GaugeSample(metrics.REFERENCE_ROWS, (reference["topic"],), reference["rows"])
        if reference["age"] is not None:
            yield GaugeSample(metrics.REFERENCE_AGE, (reference["topic"],), reference["age"])
    for copy in status.get("standbys", ()):
        yield GaugeSample(metrics.STANDBY, (str(copy["partition"]),), float(copy["loading"] is None))
        if copy["age"] is not None:
            yield GaugeSample(metrics.STANDBY_AGE, (str(copy["partition"]),), copy["age"])


def _of_partition(partition: dict[str, Any]) -> Iterator[GaugeSample]:
    label = str(partition["partition"])
    yield GaugeSample(metrics.PHASE, (label, partition["phase"]), 1)
    if partition.get("paused"):
        yield GaugeSample(metrics.PAUSED, (label,), 1)
    if partition.get("deadly_offset") is not None:
        yield GaugeSample(metrics.DEADLY, (label,), partition["deadly_offset"])
    yield GaugeSample(metrics.MAILBOX, (label,), partition["mailbox"])
    for metric, field in ((metrics.LAG, "lag"), (metrics.HIDDEN, "hidden")):
        if partition[field] is not None:
            yield GaugeSample(metric, (label,), partition[field])
    live = partition.get("live")
    if live is not None:
        yield GaugeSample(metrics.RESTORE_PREDICTED, (label,), partition["restore_predicted"])
        yield from _of_live(label, live)
    restore = partition["restore"]
    if restore is not None:
        whole = restore["end"] - restore["begin"]
        done = (restore["position"] - restore["begin"]) / whole if whole > 0 else 1.0
        yield GaugeSample(metrics.RESTORE_DONE, (label, restore["step"]), min(1.0, max(0.0, done)))


def _of_live(label: str, live: dict[str, Any]) -> Iterator[GaugeSample]:
    since = live["effects_since"]
    yield GaugeSample(metrics.STATE_BYTES, (label,), live["bytes"])
    yield GaugeSample(metrics.SINCE_FULL, (label,), live["since_full"])
    yield GaugeSample(metrics.PENDING_EFFECTS, (label,), live["effects"])
    if live["time"] is not None:
        yield GaugeSample(metrics.PARTITION_TIME, (label,), live["time"])
    if live["calls"] is not None:
        asked = live["calls_since"]
        yield GaugeSample(metrics.PENDING_CALLS, (label,), live["calls"])
        yield GaugeSample(metrics.DEAD_CALLS, (label,), live["calls_dead"])
        yield GaugeSample(metrics.CALLS_DOWN, (label,), len(live["calls_down"]))
        yield GaugeSample(metrics.CALL_AGE, (label,), max(0.0, time.time() - asked) if asked else 0.0)
    if live["requests"] is not None:
        taken = live["requests_since"]
        yield GaugeSample(metrics.KEPT_REQUESTS, (label,), live["requests"])
        yield GaugeSample(metrics.WAITING_REQUESTS, (label,), live["requests_waiting"])
        yield GaugeSample(metrics.REQUEST_AGE, (label,), max(0.0, time.time() - taken) if taken else 0.0)
    if live["blocked_keys"] is not None:
        yield GaugeSample(metrics.BLOCKED_KEYS, (label,), live["blocked_keys"])
    if live["later"] is not None:
        yield GaugeSample(metrics.RETRY_WAITING, (label,), live["later"])
    yield GaugeSample(metrics.EFFECT_AGE, (label,), max(0.0, time.time() - since) if since else 0.0)
