"""Declares every metric of a service: name, meaning, unit, labels. docs/reference/metrics.md is generated from it.

A name ends with its base unit (seconds, bytes, records, ratio), a counter's name with `_total`. To add a metric,
declare it here and run `python -m script.generate`. Call `set`, `inc` or `observe` of `telemetry.registry` per batch or
commit, never per record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

#: Buckets from 1 ms, for calls, up to 5 minutes, for restores.
SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
RECORDS_IN_ONE: Final = (1.0, 10.0, 100.0, 500.0, 1_000.0, 5_000.0, 10_000.0, 50_000.0, 100_000.0)
BYTES_IN_ONE: Final = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8)


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A declared metric. `labels` do not include `service` and, if `of_partition`, `partition`."""

    name: str
    text: str
    labels: tuple[str, ...]
    of_partition: bool
    buckets: tuple[float, ...] = ()
    #: Known values of the last label; their series start at 0.
    values: tuple[str, ...] = ()

    @property
    def all_labels(self) -> tuple[str, ...]:
        return ("service", *(("partition",) if self.of_partition else ()), *self.labels)


class Counter(Metric):
    """Grows during the life of the process; it keeps its value when its partition leaves."""

    __slots__ = ()


class Gauge(Metric):
    """A current value; its series disappears with the partition."""

    __slots__ = ()


class Histogram(Metric):
    """Counts observations by size."""

    __slots__ = ()


_M = TypeVar("_M", bound=Metric)
#: In the order of docs/reference/metrics.md.
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

BUILD: Final = _gauge(
    "build_info", "1; the labels name the release and the Python version.", "version", "python", of_partition=False
)
READY: Final = _gauge(
    "ready",
    "1 while every assigned partition is live (also without partitions: an idle member), else 0. With `--processes` "
    "also 0 for a process that does not answer.",
    of_partition=False,
)
PARTITIONS: Final = _gauge(
    "partitions_assigned", "Partitions that the group has assigned to this process.", of_partition=False
)
INPUT_PARTITIONS: Final = _gauge("input_partitions", "Partitions of the input topic.", of_partition=False)
RESTORE_BUDGET: Final = _gauge(
    "restore_budget_seconds",
    "The setting snapshot.restore_budget, the longest acceptable restore; absent when it is off.",
    of_partition=False,
)
LOOP_TIME: Final = _gauge(
    "loop_heartbeat_timestamp_seconds", "Time of the manager loop's last turn, since 1970.", of_partition=False
)
OUTAGE: Final = _gauge(
    "outage_seconds", "Time since Kafka stopped answering the whole service; 0 while it answers.", of_partition=False
)
STUCK: Final = _gauge(
    "stuck_calls", "Calls in progress beyond their time limit; the log has the stack of each.", of_partition=False
)
REBALANCES: Final = _counter(
    "rebalances",
    "Rebalance callbacks by kind: assigned, revoked, lost.",
    "kind",
    of_partition=False,
    values=("assigned", "revoked", "lost"),
)

PROCESS_RESTARTS: Final = _counter(
    "process_restarts",
    "With `--processes`: restarts of a process that ended without being asked to.",
    "process",
    of_partition=False,
)

# Position of a partition

PHASE: Final = _gauge("partition_phase", "1 for the partition's phase; no series for the others.", "phase")
PAUSED: Final = _gauge("partition_paused", "1 while `statehold pause` pauses the partition; no series otherwise.")
POSITION: Final = _gauge("position_offset", "Committed next input offset.")
LAG: Final = _gauge(
    "consumer_lag_records",
    "Offsets from the committed position to the input's last stable offset. Transaction markers count too, so a few "
    "may remain. Absent until the brokers have answered.",
)
HIDDEN: Final = _gauge(
    "input_hidden_records",
    "High watermark minus last stable offset of the input: records behind a producer's open transaction.",
)
RECORD_TIME: Final = _gauge(
    "last_record_timestamp_seconds", "Timestamp of the newest committed input record, since 1970."
)
PARTITION_TIME: Final = _gauge(
    "partition_time_timestamp_seconds",
    "The partition's own time, since 1970: the highest timestamp of its records, by which timers, windows and joins "
    "go; absent for a handler without these.",
)
FAILURES: Final = _counter("partition_failures", "Failures of a partition by error class.", "error")

DEADLY: Final = _gauge(
    "deadly_record_offset",
    "Offset of the record at which a partition has failed because processes died while they handled it; absent "
    "otherwise.",
)
RETENTION_LEFT: Final = _gauge(
    "input_retention_left_seconds",
    "Lower bound of the seconds until retention deletes the next record that this partition or its restore needs, from "
    "its timestamp and retention.ms, and from the measured byte rate and retention.bytes. +Inf without a limit; "
    "measured once a minute.",
)

# Work

RECORDS: Final = _counter("records_processed", "Input records whose transaction committed.")
OUTPUTS: Final = _counter("records_produced", "Output records whose transaction committed.")
HANDLER_SECONDS: Final = _histogram("handler_seconds", "Time in the handler for the records of one transaction.")
SLOW_RECORDS: Final = _counter(
    "slow_records", "Handler calls for one record or batch that took longer than failure.handler_slow."
)
MAILBOX: Final = _gauge("mailbox_records", "Records queued between the manager and the partition's thread.")
PAUSES: Final = _counter("pauses", "Pauses of the partition because its queue was full.")
CALLS_ENDED: Final = _counter("calls_ended", "Durable calls whose answer or failure is committed.")
CALL_FAILURES: Final = _counter("call_failures", "Attempts of durable calls that raised.")
CALL_SECONDS: Final = _histogram(
    "call_seconds",
    "Time from the commit that makes a durable call until it is answered or has failed, all attempts included, by "
    "`Call`; after a takeover from there on.",
    "call",
)
PENDING_CALLS: Final = _gauge("pending_calls", "Durable calls that wait for an answer; absent without a Call.")
CALL_AGE: Final = _gauge("calls_oldest_seconds", "Age of the oldest pending durable call; 0 when none is pending.")
CALLS_DOWN: Final = _gauge("down_calls", "Calls (by declaration) whose other system is down; absent without a Call.")
DEAD_CALLS: Final = _gauge("dead_calls", "Durable calls whose attempts are used up and that wait for an operator.")
EFFECTS_DONE: Final = _counter("effects_done", "Effects that succeeded.")
PENDING_EFFECTS: Final = _gauge("effects_pending_calls", "Pending effects of committed records.")
EFFECT_AGE: Final = _gauge("effects_oldest_seconds", "Age of the oldest pending effect; 0 when none is pending.")
FAILED_RECORDS: Final = _counter(
    "failed_records",
    "Failed records by failure decision: retry (in place), retried_later, retried, raised (dead-lettered), followed "
    "(dead-lettered because its key is blocked), park, stop; and dead letters that were replayed, discarded or "
    "failed_again.",
    "what",
)
BLOCKED_KEYS: Final = _gauge("blocked_keys", "Keys that are blocked by dead letters; absent without such a policy.")
RETRY_WAITING: Final = _gauge(
    "retry_waiting_records",
    "Records pending on retry topics, counted up to 2,000 per topic; absent without such a policy.",
)
EFFECT_FAILURES: Final = _counter("effect_failures", "Effect calls that raised.")

LATE_RECORDS: Final = _counter(
    "late_records", "Committed records that came after a window of their time had closed, by window.", "window"
)

RECORDS_AHEAD: Final = _counter(
    "records_ahead",
    "Committed records that were further ahead of the worker's clock than time.max_ahead allows (an hour in "
    "development without it), by what became of the partition's time: held, advanced.",
    "time",
    values=("held", "advanced"),
)

REKEY_HOPS: Final = _gauge(
    "rekey_hops", "Most sends of a Rekey by which a committed record has come since the partition is live."
)

REQUESTS: Final = _counter(
    "requests",
    "Committed requests by what became of them: taken (handled, because the id was new), answered, repeated (got the "
    "stored answer), joined (waits with an earlier one for its answer), conflict (another value under a kept id), "
    "failed (the record has failed, and its asker has that as a reply). Absent without Replies.",
    "what",
)
KEPT_REQUESTS: Final = _gauge(
    "requests_kept_keys", "Ids of requests that the state keeps, with their answers; absent without Replies."
)
WAITING_REQUESTS: Final = _gauge(
    "requests_waiting_records",
    "Requests without an answer yet, of those taken since the partition is live; absent without Replies.",
)
REQUEST_AGE: Final = _gauge(
    "requests_oldest_seconds", "Age of the oldest request in statehold_requests_waiting_records; 0 when none waits."
)

SINK_ROWS: Final = _counter("sink_rows", "Rows put into or deleted from the sinks' database.")
SINK_SECONDS: Final = _histogram("sink_seconds", "Duration of a transaction of the sinks' database.")
SINK_REJECTED: Final = _counter(
    "sink_rejected", "Transactions that the sinks' database rejected: a newer epoch, or another position."
)

# Transactions

TRANSACTIONS: Final = _counter(
    "transactions",
    "Transactions by outcome: committed, aborted, fenced, unknown.",
    "outcome",
    values=("committed", "aborted", "fenced", "unknown"),
)
COMMIT_SECONDS: Final = _histogram(
    "commit_seconds", "Time from the last record of a transaction to the response to its commit."
)
COMMIT_RECORDS: Final = _histogram(
    "commit_records", "Input records of one committed transaction.", buckets=RECORDS_IN_ONE
)
COMMIT_BYTES: Final = _histogram(
    "commit_increment_bytes", "Bytes of commit record and delta of one committed transaction.", buckets=BYTES_IN_ONE
)

# Takeover

TAKEOVER_SECONDS: Final = _histogram(
    "takeover_seconds",
    "Duration of each step before a partition is live: fence, restore, replay.",
    "step",
    values=("fence", "restore", "replay"),
)
RESTORE_DONE: Final = _gauge(
    "restore_done_ratio",
    "Progress of the current restore or replay step, 0 to 1; absent otherwise.",
    "step",
)
RESTORE_PREDICTED: Final = _gauge("restore_predicted_seconds", "Predicted duration of a restore of the partition now.")

# Standby replicas

STANDBY: Final = _gauge(
    "standby_ready", "1 for another instance's partition whose standby replica is ready here, 0 while it loads."
)
STANDBY_AGE: Final = _gauge(
    "standby_age_seconds", "Time since the standby replica held every committed change: its state's greatest age."
)
STANDBYS_DROPPED: Final = _counter(
    "standbys_dropped", "Standby replicas that were dropped and are loaded again.", of_partition=False
)

# Watches over HTTP

WATCHES_OPENED: Final = _counter("watches_opened", "Streams of /watch that have begun.", of_partition=False)
WATCHES_ENDED: Final = _counter("watches_ended", "Streams of /watch that have ended.", of_partition=False)
WATCHES_SLOW: Final = _counter(
    "watches_slow", "Streams of /watch that were ended because their readers were too slow.", of_partition=False
)
WATCH_EVENTS: Final = _counter("watch_events", "Events that were sent over streams of /watch.", of_partition=False)

# Reference data

REFERENCE_ROWS: Final = _gauge(
    "reference_keys", "Keys of a reference topic in this process.", "topic", of_partition=False
)
REFERENCE_AGE: Final = _gauge(
    "reference_age_seconds",
    "Time since this process had read every committed row of a reference topic; absent before that.",
    "topic",
    of_partition=False,
)

# State and snapshots

KEYS: Final = _gauge("state_keys", "Keys in the partition's tables.")
STATE_BYTES: Final = _gauge(
    "state_bytes",
    "Bytes of keys and values, estimated from the newest full snapshot, or from the deltas before the first one.",
)
INCREMENT_BYTES: Final = _counter("increment_bytes", "Bytes of commit records and deltas of committed transactions.")
SINCE_FULL: Final = _gauge(
    "increment_since_full_bytes", "Bytes of the changelog that a restore would read after the newest full snapshot."
)
FULL_SNAPSHOTS: Final = _counter(
    "full_snapshots",
    "Full snapshots by outcome: written, given_up, differs (a verification has found other contents than those of its "
    "commit record: when it was written, before a deletion, or in a restore).",
    "outcome",
    values=("written", "given_up", "differs"),
)
FULL_BYTES: Final = _counter("full_bytes", "Bytes of the chunks of complete full snapshots, before compression.")
FULL_PAUSE_SECONDS: Final = _histogram("full_pause_seconds", "Pause of processing for one slice of a full snapshot.")
LOCAL_STORE_SECONDS: Final = _histogram(
    "local_store_write_seconds", "Duration of writing one commit to the files of tables on disk."
)
LOCAL_STORE_BYTES: Final = _gauge("local_store_bytes", "Bytes of the files of tables on disk.")
LOCAL_STORE_USED: Final = _gauge(
    "local_store_used_bytes",
    "Bytes of the pages of those files that are in use; the other pages are free, and later writes use them again.",
)
LOCAL_STORE_DECODED: Final = _gauge(
    "local_store_decoded_bytes",
    "Estimated bytes of the decoded values of tables on disk, and their keys, in memory: at most state.memory for the "
    "process.",
)
LOCAL_STORE_READS: Final = _counter(
    "local_store_reads", "Values that were read from the files of tables on disk, because none was in memory."
)
LOCAL_STORE_SCRUBS: Final = _counter(
    "local_store_scrubs",
    "Passes of the scrub over the files of tables on disk: equal (the digest of all rows is the commit record's), "
    "rows_only (the files grew too much for one snapshot, so each row was checked alone), differs.",
    "outcome",
    values=("equal", "rows_only", "differs"),
)
LOCAL_STORE_SCRUBBED: Final = _gauge(
    "local_store_scrubbed_timestamp_seconds",
    "Time of the last scrub whose digest of all rows was equal, since 1970; absent before it.",
)
FULL_TIME: Final = _gauge(
    "full_last_success_timestamp_seconds", "Time of the newest complete full snapshot, since 1970; absent before it."
)
