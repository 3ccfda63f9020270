"""Settings of a partition's work: commits, snapshots, restores, flow, outputs, failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from statehold.config.common.option import Section, choice, count, flag, seconds, size, text

DAY: Final = 86_400.0
_STORE: Final = r"(file:///\S*[^/\s]|s3://[^/\s]+(/\S*[^/\s])?)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettings(Section, name="commit"):
    """When a transaction ends, and when its outcome counts as unknown."""

    interval: float = seconds(
        0.1,
        "Longest time between processing a record and its commit: the larger part of the output's latency. A partition "
        "that waited for records for less than a fifth of that time is behind: it commits after twice as long, and a "
        "record then takes a tenth less processor time. A commit also waits until the one before it has ended.",
        low=0.001,
        high=60.0,
    )
    max_records: int = count(
        50_000,
        "Maximum number of input records in a transaction. They are kept until the commit, to be processed "
        "again after an abort; 50,000 is 200 ms at 250,000 records/s. Many windows or timers that are due before one "
        "record count as records.",
        low=1,
        high=10_000_000,
    )
    max_rate: int = count(
        200,
        "Maximum number of transactions a second of all partitions of a process. If more than commit.interval x "
        "commit.max_rate partitions (20) have records, each transaction stays open longer than commit.interval, but at "
        "most a third of commit.transaction_timeout. Otherwise transactions would take the time that records need.",
        low=1,
        high=1_000_000,
    )
    early: bool = flag(
        True,
        "Whether an answer to a request ends commit.interval: the transaction commits as soon as the one before it has "
        "ended and commit.max_rate allows. Records without requests never do.",
    )
    timeout: float = seconds(
        20.0,
        "How long the worker resumes a commit call. Then the outcome is unknown: it creates a new producer, "
        "fences the old one and reads the last commit record. 20 s outlasts the loss of one broker (9 to 17 s "
        "measured).",
        low=1.0,
        high=600.0,
    )
    transaction_timeout: float = seconds(
        30.0,
        "When the broker aborts a transaction that no producer ends. An open transaction blocks every "
        "read_committed reader of the output. Longer than commit.timeout, and at most the broker's "
        "transaction.max.timeout.ms.",
        low=2.0,
        high=900.0,
    )
    slow: float = seconds(
        5.0,
        "A commit or abort that takes longer, or longer than kafka.socket_timeout, makes its producer suspect: the "
        "request may have been sent twice, so the next transaction uses a new producer.",
        low=0.05,
        high=60.0,
    )
    renew_after: float = seconds(
        DAY,
        "An idle partition commits one empty transaction this often, so that its producer id (broker default 7 "
        "days) does not expire: an expired id no longer fences a zombie.",
        low=1.0,
        high=5 * DAY,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings(Section, name="snapshot"):
    """How the state is stored in Kafka."""

    delta_interval: float | Literal["commit", "off"] = seconds(
        "commit",
        "How often changed keys are written. commit: with every transaction, so nothing is replayed after a "
        "crash and handlers may be non-deterministic. Seconds or off: less is written, the gap is replayed, and "
        "the handler must be deterministic.",
        low=0.1,
        high=3600.0,
    )
    periodic_full: bool = flag(True, "Whether full snapshots are taken while running.")
    full_interval: float = seconds(600.0, "Take a full snapshot if the last one is older.", low=1.0, high=30 * DAY)
    full_bytes: int = size(
        256_000_000,
        "Take a full snapshot if more deltas than this were written since the last one: it bounds the bytes "
        "that a restore reads.",
        low=65_536,
        high=10**13,
    )
    full_growth: int = count(
        1,
        "Take a full snapshot if the deltas since the last one hold this many times the keys of the state, and "
        "at least 500,000 keys: a restore then applies about as much as it loads. 0: never for this reason.",
        high=1000,
    )
    restore_budget: float | Literal["off"] = seconds(
        "off",
        "How long a restore may take. The worker predicts it from the size of the full snapshot, the deltas "
        "since, the gap and the speed of its last restore, and takes a full snapshot at four fifths of it. With "
        "periodic_full off it requests a compaction instead (warning compaction_wanted).",
        low=0.5,
        high=DAY,
    )
    slice_budget: float = seconds(
        0.003,
        "Longest time that one slice of a full snapshot may delay processing; slices are taken between batches.",
        low=0.0005,
        high=10.0,
    )
    keep: int = count(
        3, "Verified full snapshots that are kept. Records before the oldest one are truncated.", low=1, high=1000
    )
    share: int = count(
        0,
        "Most full snapshots in a row that share the chunks of one: each writes only the keys that changed since the "
        "one before, so it costs as much as the changes. A restore reads up to half as many rows again, and keep "
        "counts all that share chunks as one. 0: each full snapshot is whole.",
        high=1000,
    )
    on_stop: bool = flag(True, "Whether a clean stop takes a full snapshot, so that the next start replays nothing.")
    chunk_bytes: int = size(
        256_000,
        "Size of one chunk of a full snapshot before compression; a chunk has at most 2,048 keys.",
        low=4096,
        high=50_000_000,
    )

    full_store: str = text(
        "kafka",
        "Where the chunks of full snapshots are stored: kafka, a directory that every machine sees "
        "(file:///srv/fulls), or an object store (s3://bucket/prefix; needs the extra statehold[s3], "
        "credentials from the environment). The manifest is always in Kafka. After a change, name the old store "
        "in former_stores.",
        pattern=r"kafka|file:///.*[^/]|s3://[^/]+(/.*[^/])?",
        form="kafka, file:///directory or s3://bucket/prefix, without '/' at the end",
    )
    former_stores: str = text(
        "",
        "Other stores that full snapshots are read from, such as the former full_store until its full snapshots are "
        "truncated. A manifest is data from Kafka: a full snapshot in a store that neither setting names is not read.",
        pattern=rf"({_STORE}( +{_STORE})*)?",
        form="stores as in full_store, separated by spaces",
    )
    local_dir: str = text(
        "",
        "A directory on a local disk that keeps the newest full snapshot of each partition, so that a restart "
        "need not download it. It grows to the size of the state of all partitions that were ever assigned "
        "here. It is used only if the manifest in Kafka names exactly its chunks, and the digest verifies the "
        "result. Empty: none.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSettings(Section, name="restore"):
    """Reading the state back."""

    deadline: float = seconds(
        300.0, "How long a restore may wait for data that it needs before the partition fails.", low=1.0, high=DAY
    )
    attempts: int = count(
        3,
        "How often a restore is planned again if records vanish during it because they were truncated.",
        low=1,
        high=100,
    )
    hanging_after: float = seconds(
        60.0,
        "How long another producer's open transaction may hide the end of the service's topics before the "
        "partition fails and names it. Longer than the transaction timeouts of this cluster, so that the broker "
        "can end it first.",
        low=1.0,
        high=3600.0,
    )
    queue_bytes: int = size(
        64_000_000,
        "Read-ahead of one restore reader; partitions restore in parallel.",
        low=1_048_576,
        high=2 * 10**9,
    )
    memory_limit: int | Literal["auto", "off"] = size(
        "auto",
        "Memory that this process may use. A partition whose state would not fit below nine tenths of it is "
        "rejected before it is loaded (MemoryShort); the others keep running. auto: the "
        "smallest limit of its cgroups (MemoryMax of a unit, a container's limit) and the machine.",
        low=16_777_216,
        high=10**15,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings(Section, name="flow"):
    """How records move from the manager thread to the partitions' threads."""

    high: int = count(20_000, "Records in a mailbox at which its partition is paused.", low=2, high=10_000_000)
    low: int = count(
        2_000,
        "Records in a mailbox at which its partition is resumed. While the mailboxes hold more together, no records "
        "are taken from the client, for 10 ms at most if one of them holds less: with 20,000 records waiting, each "
        "took a fifth more processor time, because they had left the processor's caches.",
        low=0,
        high=10_000_000,
    )
    batch: int = count(1000, "Records taken from the client at once; more was not faster.", low=1, high=1_000_000)
    poll_timeout: float = seconds(
        0.02,
        "Longest wait for a batch to fill, at most a fifth of commit.interval. It adds to latency if the load is low, "
        "and reports are read this often. In a service that answers requests the first record ends it (commit.early).",
        low=0.001,
        high=0.1,
    )
    prefetch_records: int = count(
        200_000,
        "Records that the client reads ahead, of all partitions together. With 50,000, a fifth of a second's work, the "
        "partitions' threads waited for a fetch.",
        low=1,
        high=10_000_000,
    )
    prefetch_bytes: int = size(64_000_000, "Bytes that the client reads ahead in total.", low=1_048_576, high=2 * 10**9)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings(Section, name="output"):
    """How outputs and deltas are sent."""

    origin: bool = flag(
        True,
        "Whether each output carries a header with its input partition, transaction and ordinal (half a "
        "microsecond a record). Needed to verify outputs and to complete a torn transaction.",
    )
    compression: Literal["none", "lz4", "zstd", "snappy", "gzip"] = choice(
        "lz4",
        "Compression of batches on the wire and on the brokers' disks. lz4 was the fastest even on one machine "
        "(JSON, large transactions: 10 to 30 % more records/s than none, for the same CPU time). To read lz4, zstd or "
        "snappy, kafka-python and aiokafka need an extra, such as aiokafka[lz4]; other clients need none.",
    )
    linger: float = seconds(
        0.05,
        "How long a batch may wait to fill; a commit flushes, so it adds no latency. Each batch wakes a thread of the "
        "client, which then looks at every partition of every topic that the producer writes to: with 200 partitions "
        "and 5 ms this took a quarter of the processor time.",
        high=1.0,
    )
    queue_bytes: int = size(
        64_000_000,
        "Unsent bytes that one producer may hold; the client's default would allow 1 GB for every partition.",
        low=1_048_576,
        high=2 * 10**9,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings(Section, name="commands"):
    """Where commands may come from."""

    from_input: bool = flag(
        True,
        "Whether a record of the input with the header statehold-command is a command. Off: such a record is an "
        "undecodable record, so that a producer cannot command the service; commands come by the control topic alone, "
        "which has its own ACLs. A replay executes the commands that were executed before.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSettings(Section, name="failure"):
    """How the service reacts to failures."""

    on_partition_failure: Literal["park", "exit"] = choice(
        "park",
        "park: a failed partition stays assigned and paused, the others keep running, and `statehold retry` "
        "retries it. exit: the process stops.",
    )
    handler_slow: float = seconds(
        10.0,
        "A handler call that takes longer on one record (or one batch, with on_batch) is logged once, with its "
        "stack (handler_slow). The group is not affected: the manager keeps polling.",
        low=0.1,
        high=DAY,
    )
    handler_stuck: float | Literal["off"] = seconds(
        300.0,
        "A handler call that takes longer than this is abandoned: the partition fails, and no result of the "
        "call is committed. Longer than the slowest good record.",
        low=0.2,
        high=DAY,
    )
    stuck_exit: float | Literal["off"] = seconds(
        60.0,
        "How long after that the process leaves the group and exits with code 4, if the handler has not "
        "returned: a thread cannot be stopped from outside. off: the process stays, with the partition failed.",
        low=0.1,
        high=DAY,
    )
    dead_row: int = count(
        20,
        "This many consecutive records may become dead letters or go to a retry topic. The next one fails the "
        "partition: a flood of failures is treated as an outage, not as bad data.",
        low=1,
        high=1_000_000,
    )
    dead_percent: int = count(
        10,
        "Percentage of the newest dead_window records that may do so; above it the partition fails. 100: any.",
        low=1,
        high=100,
    )
    dead_window: int = count(1000, "Number of records that dead_percent refers to.", low=10, high=10_000_000)
    fence_limit: int = count(
        5,
        "If a partition is fenced this often within fence_window, it fails: two owners compete for it.",
        low=1,
        high=1000,
    )
    fence_window: float = seconds(600.0, "The window of fence_limit.", low=1.0, high=DAY)
