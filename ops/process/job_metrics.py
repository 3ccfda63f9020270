"""What a compaction tells a monitoring system: a job is over before anybody could scrape it, so it leaves its figures.

Either in a file that node_exporter's textfile collector reads, or with a Pushgateway.
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
    """The job is done, but nobody could be told its figures."""


class PartitionFigures(NamedTuple):
    """What became of one partition; sizes in bytes."""

    partition: int
    keys: int
    bytes_before: int
    bytes_after: int
    seconds: float
    #: the folded state's digest was the one that the live worker wrote
    proven: bool


class JobMetrics:
    """The figures of one run, from its beginning on.

    :raises UsageError: the file's name does not end with .prom, told before hours of work.
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
        """The run ends by an error, which must not be hidden by one of ours."""
        with contextlib.suppress(MetricsNotDelivered):
            self.ended([], ok=False)


def registry_of(service: str, partitions: Sequence[PartitionFigures], seconds: float, *, ok: bool) -> CollectorRegistry:
    """The figures of one run that ends now, in a registry of their own: nothing of this process comes along."""
    registry = CollectorRegistry()

    def whole(name: str, text: str, value: float) -> None:
        Gauge(f"statehold_compaction_{name}", text, ("service",), registry=registry).labels(service).set(value)

    whole("success", "Whether the last run proved and published all it was asked for: 1, else 0.", float(ok))
    whole("finished_timestamp_seconds", "When the last run ended, since 1970.", time.time())
    whole("duration_seconds", "How long the last run took.", seconds)
    for name, text, pick in (
        ("keys", "Keys of the state that was compacted.", lambda each: each.keys),
        ("read_bytes", "Bytes of fulls and increments that were read.", lambda each: each.bytes_before),
        ("full_bytes", "Bytes of the full that was written.", lambda each: each.bytes_after),
        ("partition_seconds", "How long the partition took.", lambda each: each.seconds),
        ("proven", "Whether the folded digest was the worker's: 1, else 0.", lambda each: float(each.proven)),
    ):
        gauge = Gauge(f"statehold_compaction_{name}", text, _LABELS, registry=registry)
        for each in partitions:
            gauge.labels(service, str(each.partition)).set(pick(each))
    return registry


def deliver(registry: CollectorRegistry, service: str, file: Path | None, gateway: str | None) -> None:
    """Write the file, in one step, and push to the gateway (`host:port` or a URL); None leaves one out.

    :raises MetricsNotDelivered: it cannot be done.
    """
    try:
        if file is not None:
            write_to_textfile(str(file), registry)
        if gateway is not None:
            grouping = {"service": service}
            push_to_gateway(gateway, "statehold-compaction", registry, grouping, timeout=_PUSH_SECONDS)
    except OSError as error:
        raise MetricsNotDelivered(f"{file if gateway is None else gateway}: {error}") from error
