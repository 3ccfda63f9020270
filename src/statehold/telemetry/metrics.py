"""Every metric of a service, declared once: name, meaning, unit, labels. docs/metrics.md is made from this.

A name ends with its base unit (seconds, bytes, records, ratio), a counter's with `_total`. To add one: declare it here,
call `set`, `inc` or `observe` of `telemetry.registry` where it happens (per batch or commit, never per record),
and run `python -m script.generate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

#: from half a commit interval's tenth up to a restore of minutes
SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
RECORDS_IN_ONE: Final = (1.0, 10.0, 100.0, 500.0, 1_000.0, 5_000.0, 10_000.0, 50_000.0, 100_000.0)
BYTES_IN_ONE: Final = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8)


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """`labels` are those beside `service` and, where `of_partition`, `partition`."""

    name: str
    text: str
    labels: tuple[str, ...]
    of_partition: bool
    buckets: tuple[float, ...] = ()
    #: of the last label, where they are known: such series are there from the beginning, at 0
    values: tuple[str, ...] = ()

    @property
    def all_labels(self) -> tuple[str, ...]:
        return ("service", *(("partition",) if self.of_partition else ()), *self.labels)

    @property
    def known(self) -> list[tuple[str, ...]]:
        """The values of `labels` that are known before anything happened."""
        return [(value,) for value in self.values] if self.labels else [()]


class Counter(Metric):
    """Only grows, as long as the process lives; a partition that leaves keeps its figure."""

    __slots__ = ()


class Gauge(Metric):
    """The value of now; a partition that leaves takes its series along."""

    __slots__ = ()


class Histogram(Metric):
    """How often something was of which size."""

    __slots__ = ()


_M = TypeVar("_M", bound=Metric)
#: in the order of the page
DECLARED: Final[list[Metric]] = []


def _declare(metric: _M) -> _M:
    DECLARED.append(metric)
    return metric


def _gauge(name: str, text: str, *labels: str, of_partition: bool = True) -> Gauge:
    return _declare(Gauge(f"statehold_{name}", text, labels, of_partition))


def _counter(name: str, text: str, *labels: str, of_partition: bool = True, values: tuple[str, ...] = ()) -> Counter:
    return _declare(Counter(f"statehold_{name}_total", text, labels, of_partition, values=values))


def _histogram(
    name: str, text: str, *labels: str, buckets: tuple[float, ...] = SECONDS, values: tuple[str, ...] = ()
) -> Histogram:
    return _declare(Histogram(f"statehold_{name}", text, labels, of_partition=True, buckets=buckets, values=values))


# The service

BUILD: Final = _gauge("build_info", "1; the labels say what is running.", "version", "python", of_partition=False)
READY: Final = _gauge(
    "ready",
    "1 while every assigned partition is live (also when there is none: a standby), else 0.",
    of_partition=False,
)
PARTITIONS: Final = _gauge(
    "partitions_assigned", "Partitions that the group has given to this process.", of_partition=False
)
INPUT_PARTITIONS: Final = _gauge("input_partitions", "Partitions of the input topic.", of_partition=False)
RESTORE_BUDGET: Final = _gauge(
    "restore_budget_seconds",
    "The setting snapshot.restore_budget: how long a restore may take; absent when it is off.",
    of_partition=False,
)
LOOP_TIME: Final = _gauge(
    "loop_heartbeat_timestamp_seconds", "Last turn of the manager's loop, since 1970.", of_partition=False
)
OUTAGE: Final = _gauge(
    "outage_seconds", "For how long Kafka has not answered the service as a whole; 0 while it does.", of_partition=False
)
STUCK: Final = _gauge(
    "stuck_calls", "Calls under way for longer than they may take; the log has each one's stack.", of_partition=False
)
REBALANCES: Final = _counter(
    "rebalances",
    "Rebalance callbacks by kind: assigned, revoked, lost.",
    "kind",
    of_partition=False,
    values=("assigned", "revoked", "lost"),
)

# Where a partition is

PHASE: Final = _gauge("partition_phase", "1 for the phase that the partition is in; no series for the others.", "phase")
PAUSED: Final = _gauge(
    "partition_paused", "1 while the partition stands still by `statehold pause`; no series otherwise."
)
POSITION: Final = _gauge("position_offset", "Next input offset to read, as committed.")
LAG: Final = _gauge(
    "consumer_lag_records",
    "Offsets between the committed position and the input's last stable offset: what could be read now. Markers of "
    "transactions count too, so a few may stay. Absent until the brokers have told.",
)
HIDDEN: Final = _gauge(
    "input_hidden_records",
    "High watermark minus last stable offset of the input: what somebody's open transaction hides from every reader.",
)
RECORD_TIME: Final = _gauge(
    "last_record_timestamp_seconds", "Timestamp of the newest input record that has committed, since 1970."
)
FAILURES: Final = _counter("partition_failures", "Times a partition failed, by error class.", "error")

RETENTION_LEFT: Final = _gauge(
    "input_retention_left_seconds",
    "Seconds until retention may delete the next record that this partition, or a restore of it, needs: a lower bound "
    "from its timestamp and retention.ms and, with retention.bytes, from the measured byte rate. +Inf without a limit; "
    "looked at once a minute.",
)

# Work

RECORDS: Final = _counter("records_processed", "Input records whose transaction committed.")
OUTPUTS: Final = _counter("records_produced", "Output records whose transaction committed.")
HANDLER_SECONDS: Final = _histogram("handler_seconds", "Time in the handler for the records of one transaction.")
SLOW_RECORDS: Final = _counter(
    "slow_records", "Calls of the handler that took longer on one record or batch than failure.handler_slow."
)
MAILBOX: Final = _gauge("mailbox_records", "Records between the manager and the partition's thread.")
PAUSES: Final = _counter("pauses", "Times the partition was paused because its mailbox was full.")
EFFECTS_DONE: Final = _counter("effects_done", "Side effects that succeeded.")
EFFECTS_OWED: Final = _gauge("effects_owed_calls", "Side effects whose record has committed and that are not done.")
EFFECT_AGE: Final = _gauge(
    "effects_oldest_seconds", "Since the record that asked for the oldest side effect that is owed; 0 when none is."
)
FAILED_RECORDS: Final = _counter(
    "failed_records",
    "Failures of records by what was done: retry (in place), retried_later, retried, raised (a dead letter), followed "
    "(a dead letter because its key waits), park, stop; of letters that came back: replayed, discarded, failed_again.",
    "what",
)
PARKED_KEYS: Final = _gauge("parked_keys", "Keys whose records wait as dead letters; absent without such a policy.")
RETRY_WAITING: Final = _gauge(
    "retry_waiting_records",
    "Records that wait on retry topics, of each topic 2,000 at most; absent without such a policy.",
)
EFFECT_FAILURES: Final = _counter("effect_failures", "Attempts of side effects that raised.")

SINK_ROWS: Final = _counter("sink_rows", "Rows put into or deleted from the sinks' database.")
SINK_SECONDS: Final = _histogram("sink_seconds", "One transaction of the sinks' database.")
SINK_REFUSED: Final = _counter(
    "sink_refused", "Transactions that the sinks' database refused: a newer epoch, or another position."
)

# Transactions

TRANSACTIONS: Final = _counter(
    "transactions",
    "Transactions by how they ended: committed, aborted, fenced, unknown.",
    "outcome",
    values=("committed", "aborted", "fenced", "unknown"),
)
COMMIT_SECONDS: Final = _histogram(
    "commit_seconds", "From the last record of a transaction to the answer to its commit."
)
COMMIT_RECORDS: Final = _histogram(
    "commit_records", "Input records of one committed transaction.", buckets=RECORDS_IN_ONE
)
COMMIT_BYTES: Final = _histogram(
    "commit_increment_bytes", "Bytes of mark and delta of one committed transaction.", buckets=BYTES_IN_ONE
)

# A takeover

TAKEOVER_SECONDS: Final = _histogram(
    "takeover_seconds",
    "Time spent on each step before going live: fence, restore, replay.",
    "step",
    values=("fence", "restore", "replay"),
)
RESTORE_DONE: Final = _gauge(
    "restore_done_ratio",
    "How much of the current step of a restore or replay is done, 0 to 1; absent when nothing is restored.",
    "step",
)
RESTORE_PREDICTED: Final = _gauge("restore_predicted_seconds", "How long a restore of the partition would take now.")

# Copies of others' states

STANDBY: Final = _gauge(
    "standby_ready", "1 for a partition of another instance whose copy is kept here, 0 while it is loaded."
)
STANDBY_AGE: Final = _gauge(
    "standby_age_seconds", "Since the copy held all that had committed: the state is at most so old."
)
STANDBYS_DROPPED: Final = _counter(
    "standbys_dropped", "Copies that were given up and are made anew.", of_partition=False
)

# Reference data

REFERENCE_ROWS: Final = _gauge(
    "reference_keys", "Keys of a reference topic in this process.", "topic", of_partition=False
)
REFERENCE_AGE: Final = _gauge(
    "reference_age_seconds",
    "Since all that had been committed to a reference topic was read here; absent before that.",
    "topic",
    of_partition=False,
)

# State and snapshots

KEYS: Final = _gauge("state_keys", "Keys in the partition's tables.")
STATE_BYTES: Final = _gauge(
    "state_bytes", "Bytes of keys and values, estimated from the newest full, or from the deltas before there is one."
)
INCREMENT_BYTES: Final = _counter("increment_bytes", "Bytes of marks and deltas whose transaction committed.")
SINCE_FULL: Final = _gauge(
    "increment_since_full_bytes", "Bytes of increments that a restore would read after the newest full."
)
FULLS: Final = _counter(
    "fulls", "Fulls by how they ended: written, given_up.", "outcome", values=("written", "given_up")
)
FULL_BYTES: Final = _counter("full_bytes", "Bytes of the chunks of complete fulls, before compression.")
FULL_PAUSE_SECONDS: Final = _histogram("full_pause_seconds", "How long one slice of a full held up processing.")
FULL_TIME: Final = _gauge(
    "full_last_success_timestamp_seconds", "When the newest full was complete, since 1970; absent while there is none."
)
