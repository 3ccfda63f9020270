"""Delivers the metrics of a compaction, which ends before Prometheus can scrape it.

They go to a file that node_exporter's textfile collector reads, or to a Pushgateway.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge, push_to_gateway, write_to_textfile

from statehold.errors import StateholdError, UsageError

_LABELS = ("service", "partition")
_PUSH_SECONDS = 10.0


class MetricsNotDelivered(StateholdError):
    """The job succeeded, but its metrics could not be delivered."""


class PartitionFigures(NamedTuple):
    """The result of one partition; sizes in bytes."""

    partition: int
    keys: int
    bytes_before: int
    bytes_after: int
    seconds: float
    #: the digest of the folded state equals the live worker's
    proven: bool


class JobMetrics:
    """The metrics of one run. Create it when the run starts.

    :raises UsageError: the file's name does not end with .prom.
    """

    def __init__(self, service: str, file: Path | None, gateway: str | None) -> None:
        if file is not None and file.suffix != ".prom":
            raise UsageError(f"{file}: the textfile collector only reads files whose names end with .prom")
        self._service, self._file, self._gateway = service, file, gateway
        self._began = time.monotonic()

    def ended(self, partitions: Sequence[PartitionFigures], *, ok: bool) -> None:
        """:raises MetricsNotDelivered:"""
        registry = registry_of(self._service, partitions, time.monotonic() - self._began, ok=ok)
        deliver(registry, self._service, self._file, self._gateway)

    def failed(self) -> None:
        """Deliver the metrics of a failed run, without hiding its error by another one."""
        with contextlib.suppress(MetricsNotDelivered):
            self.ended([], ok=False)


def registry_of(service: str, partitions: Sequence[PartitionFigures], seconds: float, *, ok: bool) -> CollectorRegistry:
    """Return the metrics of a run that ends now, in a registry without those of this process."""
    registry = CollectorRegistry()

    def whole(name: str, text: str, value: float) -> None:
        Gauge(f"statehold_compaction_{name}", text, ("service",), registry=registry).labels(service).set(value)

    whole("success", "Whether the last run proved and published all it was asked for: 1, else 0.", float(ok))
    whole("finished_timestamp_seconds", "When the last run ended, since 1970.", time.time())
    whole("duration_seconds", "How long the last run took.", seconds)
    for name, text, pick in (
        ("keys", "Keys of the state that was compacted.", lambda each: each.keys),
        ("read_bytes", "Bytes of full snapshots and deltas that were read.", lambda each: each.bytes_before),
        ("full_bytes", "Bytes of the full that was written.", lambda each: each.bytes_after),
        ("partition_seconds", "How long the partition took.", lambda each: each.seconds),
        ("proven", "Whether the folded digest was the worker's: 1, else 0.", lambda each: float(each.proven)),
    ):
        gauge = Gauge(f"statehold_compaction_{name}", text, _LABELS, registry=registry)
        for each in partitions:
            gauge.labels(service, str(each.partition)).set(pick(each))
    return registry


def deliver(registry: CollectorRegistry, service: str, file: Path | None, gateway: str | None) -> None:
    """Write the file atomically, and push to the gateway (`host:port` or a URL); None skips one.

    :raises MetricsNotDelivered: one failed.
    """
    try:
        if file is not None:
            write_to_textfile(str(file), registry)
        if gateway is not None:
            grouping = {"service": service}
            push_to_gateway(gateway, "statehold-compaction", registry, grouping, timeout=_PUSH_SECONDS)
    except OSError as error:
        raise MetricsNotDelivered(f"{file if gateway is None else gateway}: {error}") from error
