"""Every log event and every metric of holdfast, declared once.

Nothing is configured at import: a service that embeds holdfast keeps its own logging. `holdfast run` calls
`configure_logging`; whoever wants metrics reads `REGISTRY`.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: What an operator reads of a takeover, in the order of a partition's life, then what can go wrong.
Event = Literal[
    "starting",
    "subscribed",
    "member",
    "assigned",
    "revoked",
    "lost",
    "fencing",
    "fenced",
    "restoring",
    "restore_progress",
    "restored",
    "replayed",
    "live",
    "rolled_back",
    "settled",
    "producer_replaced",
    "full_started",
    "full_written",
    "full_given_up",
    "orphans_removed",
    "orphans_kept",
    "local_full_kept",
    "local_full_discarded",
    "local_full_failed",
    "full_noticed",
    "compaction_wanted",
    "restore_over_budget",
    "full_unusable",
    "replaying_far",
    "restore_overtaken",
    "truncated",
    "truncation_failed",
    "drained",
    "aborted",
    "fenced_away",
    "failed",
    "retrying",
    "kafka_retry",
    "offset_behind",
    "effect_failed",
    "command_refused",
    "producer_identity",
    "partition_closed",
    "paused",
    "resumed",
    "stopping",
    "stopped",
    "kafka_log",
    "control_open",
    "control_closed",
    "reloading",
    "thread_died",
    "uncaught",
]
EVENTS: Final[tuple[str, ...]] = get_args(Event)


class Log:
    """A structlog logger that takes declared events only."""

    __slots__ = ("_logger",)

    def __init__(self, logger: Any = None, **bound: object) -> None:
        logger = structlog.get_logger("holdfast") if logger is None else logger
        self._logger = logger.bind(**bound) if bound else logger

    def bind(self, **fields: object) -> Log:
        return Log(self._logger, **fields)

    def debug(self, event: Event, **fields: object) -> None:
        self._logger.debug(event, **fields)

    def info(self, event: Event, **fields: object) -> None:
        self._logger.info(event, **fields)

    def warning(self, event: Event, **fields: object) -> None:
        self._logger.warning(event, **fields)

    def error(self, event: Event, **fields: object) -> None:
        self._logger.error(event, **fields)


REGISTRY: Final = CollectorRegistry()
_PARTITION: Final = ("service", "partition")
_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"holdfast_{name}", text, (*_PARTITION, *labels), registry=REGISTRY)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"holdfast_{name}", text, (*_PARTITION, *labels), registry=REGISTRY)


def _seconds(name: str, text: str, *labels: str) -> Histogram:
    return Histogram(f"holdfast_{name}_seconds", text, (*_PARTITION, *labels), registry=REGISTRY, buckets=_SECONDS)


PHASE: Final = _gauge("partition_phase", "1 for the phase the partition is in, 0 for the others.", "phase")
POSITION: Final = _gauge("position_offset", "Next input offset to read, as committed.")
RECORDS: Final = _counter("records_processed_total", "Input records whose transaction committed.")
OUTPUTS: Final = _counter("records_produced_total", "Output records whose transaction committed.")
TRANSACTIONS: Final = _counter("transactions_total", "Transactions by how they ended.", "outcome")
COMMIT_SECONDS: Final = _seconds("commit", "From the first byte of the increment to the answer to the commit.")
TAKEOVER_SECONDS: Final = _seconds("takeover", "Time spent on each step before going live.", "step")
MAILBOX: Final = _gauge("mailbox_records", "Records between the manager and the partition's thread.")
KEYS: Final = _gauge("state_keys", "Keys in the partition's tables.")
INCREMENT_BYTES: Final = _counter("increment_bytes_total", "Bytes of marks and deltas whose transaction committed.")
FULL_BYTES: Final = _counter("full_bytes_total", "Bytes of the chunks of complete fulls, before compression.")
FULL_PAUSE_SECONDS: Final = _seconds("full_pause", "How long one slice of a full held up processing.")
FULL_TIME: Final = _gauge("full_last_success_timestamp_seconds", "When the newest full of this owner was complete.")
RESTORE_PREDICTED: Final = _gauge("restore_predicted_seconds", "How long a restore of the partition would take now.")
FAILURES: Final = _counter("partition_failures_total", "Times a partition failed, by error class.", "error")
EFFECT_FAILURES: Final = _counter("effect_failures_total", "Attempts of side effects that raised.")
REBALANCES: Final = Counter(
    "holdfast_rebalances_total", "Rebalance callbacks by kind.", ("service", "kind"), registry=REGISTRY
)
LOOP_TIME: Final = Gauge(
    "holdfast_loop_heartbeat_timestamp_seconds",
    "Last turn of the manager's loop.",
    ("service",),
    registry=REGISTRY,
)


class PartitionMetrics:
    """The metrics of one partition, bound once: per batch or commit, never per record."""

    def __init__(self, service: str, partition: int) -> None:
        self._labels = (service, str(partition))
        self.position = POSITION.labels(*self._labels)
        self.records = RECORDS.labels(*self._labels)
        self.outputs = OUTPUTS.labels(*self._labels)
        self.commit_seconds = COMMIT_SECONDS.labels(*self._labels)
        self.mailbox = MAILBOX.labels(*self._labels)
        self.keys = KEYS.labels(*self._labels)
        self.increment_bytes = INCREMENT_BYTES.labels(*self._labels)
        self.full_bytes = FULL_BYTES.labels(*self._labels)
        self.full_pause_seconds = FULL_PAUSE_SECONDS.labels(*self._labels)
        self.restore_predicted = RESTORE_PREDICTED.labels(*self._labels)
        self.full_time = FULL_TIME.labels(*self._labels)
        self.effect_failures = EFFECT_FAILURES.labels(*self._labels)

    def phase(self, old: str, new: str) -> None:
        PHASE.labels(*self._labels, old).set(0)
        PHASE.labels(*self._labels, new).set(1)

    def transaction(self, outcome: Literal["committed", "aborted", "unknown", "fenced"]) -> None:
        TRANSACTIONS.labels(*self._labels, outcome).inc()

    def takeover(self, step: Literal["fence", "restore", "replay"], seconds: float) -> None:
        TAKEOVER_SECONDS.labels(*self._labels, step).observe(seconds)

    def failed(self, error: BaseException) -> None:
        FAILURES.labels(*self._labels, type(error).__name__).inc()
