"""Every setting of a service, as plain frozen values. Durations are seconds, sizes bytes, unless a name says otherwise.

`Settings()` is complete and needs nothing else; `load()` fills it from the command line, the environment and files.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from holdfast.config.extra import NO_EXTRA, Extra
from holdfast.config.options import check_section, choice, count, flag, seconds, secret, size, text
from holdfast.config.secret import Secret

DAY: Final = 86_400.0
# A drain holds the manager, so all partitions wait for it. 15 s outlasts the loss of one broker (10 s measured).
_DRAIN_CAP: Final = 15.0
_CLASSIC_SESSION: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """How to reach brokers that want encryption or a login. Goes to every client alike."""

    protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = choice(
        "plaintext",
        "Encryption and login. In production a password never travels without TLS: PLAIN needs sasl_ssl.",
        "plaintext", "ssl", "sasl_plaintext", "sasl_ssl",
    )  # fmt: skip
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] = choice(
        "",
        "How to log in; needed exactly when the protocol starts with sasl. SCRAM-SHA-512 where you can choose.",
        "", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI",
    )  # fmt: skip
    sasl_username: str = text("", "User name for PLAIN and SCRAM.")
    sasl_password: Secret = secret("Password for PLAIN and SCRAM. Give it in the secrets directory.")
    ssl_ca_location: str = text("", "File or directory of CA certificates; empty uses the system's.")
    ssl_certificate_location: str = text("", "PEM file of this client's certificate, for mutual TLS.")
    ssl_key_location: str = text("", "PEM file of this client's private key, for mutual TLS.")
    ssl_key_password: Secret = secret("Passphrase of the private key.")

    def __post_init__(self) -> None:
        check_section(self, "kafka.security")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """The cluster and the connections to it."""

    bootstrap_servers: str = text(
        "127.0.0.1:9092",
        "Comma-separated host:port of some brokers; name at least two of a real cluster.",
        pattern=r"[^\s,]+:\d{1,5}(\s*,\s*[^\s,]+:\d{1,5})*",
    )
    client_id: str = text(
        "", "Name in the brokers' logs, metrics and quotas; empty uses service.instance.", pattern=r"[A-Za-z0-9._-]*"
    )
    rack: str = text("", "Where this process runs; brokers then serve reads from a replica of the same rack.")
    socket_timeout: float = seconds(
        6.0,
        "How long one request may stay unanswered. Short, so that a frozen broker costs seconds; not shorter, because a "
        "commit request that is repeated after this time taints its producer.",
        low=1.0, high=60.0,
    )  # fmt: skip
    connection_timeout: float = seconds(
        3.0, "How long opening a connection may take, TLS and login included.", low=1.0, high=60.0
    )
    statistics_interval: float = seconds(
        1.0,
        "How often a client reports its figures: producer id and epoch, and the commit requests sent (a sign of a "
        "retried commit). 0 turns them off, and with them that sign.",
        high=3600.0,
    )
    message_max_bytes: int = size(
        1_000_000,
        "Largest message we send; a delta above it is cut into parts. At most `max.message.bytes` of our topics.",
        low=16_384, high=100_000_000,
    )  # fmt: skip
    security: SecuritySettings = field(default_factory=SecuritySettings)
    extra: Extra = field(default=NO_EXTRA)

    def __post_init__(self) -> None:
        check_section(self, "kafka")
        object.__setattr__(self, "extra", Extra.of(self.extra))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Who this service is on the cluster, and how strict it runs."""

    namespace: str = text(
        "",
        "Prefix of the group, the transactional ids and our topics, such as 'staging.'. Two environments on one cluster "
        "must not fence each other. Ends with '.', '_' or '-', so that 'a' + 'bc' is never 'ab' + 'c'.",
        pattern=r"|[A-Za-z0-9][A-Za-z0-9._-]{0,98}[._-]",
    )
    instance: str = text(
        "", "Name of this process in logs and records; empty uses host name and process id.", pattern=r"[A-Za-z0-9._-]*"
    )
    mode: Literal["production", "development"] = choice(
        "production",
        "development also checks that table values are not changed in place, and allows unverified certificates and "
        "librdkafka's debug log.",
        "production", "development",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_section(self, "service")

    @property
    def identity(self) -> str:
        """`instance`, or host name and process id of the calling process."""
        return self.instance or f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Membership in the consumer group."""

    protocol: Literal["classic", "consumer"] = choice(
        "classic",
        "classic is the cooperative-sticky protocol of all brokers; consumer is KIP-848 (brokers of 4.0 and later), "
        "whose session times are set on the broker or the group, not here.",
        "classic", "consumer",
    )  # fmt: skip
    instance_id: str = text(
        "",
        "Static membership. Empty (dynamic) by default: a static member that wakes up from a pause can fence, or be "
        "fenced by, its successor, and one that is killed blocks its partitions for a whole session timeout.",
        pattern=r"[A-Za-z0-9._-]*",
    )
    session_timeout: float | Literal["auto"] = seconds(
        "auto",
        "How long a silent member keeps its partitions: the takeover time after a kill. auto: 10 s with classic (the "
        "broker's 45 s would be 45 s of standstill; heartbeats have a thread of their own, so load does not end a "
        "session), the broker's with consumer. With consumer it must stay auto.",
        low=6.0, high=1800.0, words=("auto",),
    )  # fmt: skip
    heartbeat_interval: float | Literal["auto"] = seconds(
        "auto",
        "How often a member reports, and so how soon it hears of a rebalance. auto: 1 s, or a tenth of a longer session "
        "timeout, with classic; the broker's with consumer. With consumer it must stay auto.",
        low=0.1, high=600.0, words=("auto",),
    )  # fmt: skip
    max_poll_interval: float = seconds(
        300.0,
        "How long the manager thread may not poll before the group takes all partitions away. It polls every few "
        "milliseconds, restores included; this catches a process that hangs.",
        low=10.0, high=86_400.0,
    )  # fmt: skip
    drain_budget: float | Literal["auto"] = seconds(
        "auto",
        "How long a revoked partition may take to commit what it has processed; what has not committed by then aborts. "
        "The manager waits meanwhile. auto: 0.2 x max_poll_interval, at most 15 s.",
        low=0.1, high=3600.0, words=("auto",),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_section(self, "group")

    @property
    def session_seconds(self) -> float:
        """Session timeout that the classic protocol uses."""
        return _CLASSIC_SESSION if self.session_timeout == "auto" else self.session_timeout

    @property
    def heartbeat_seconds(self) -> float:
        """Heartbeat interval that the classic protocol uses."""
        return max(1.0, self.session_seconds / 10) if self.heartbeat_interval == "auto" else self.heartbeat_interval

    @property
    def drain_seconds(self) -> float:
        """How long `on_revoke` waits for the drains."""
        return min(0.2 * self.max_poll_interval, _DRAIN_CAP) if self.drain_budget == "auto" else self.drain_budget


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettings:
    """When a transaction ends, and when its outcome counts as unknown."""

    interval: float = seconds(
        0.1,
        "Longest time between a record's handling and its commit: the larger part of the output's latency.",
        low=0.001, high=60.0,
    )  # fmt: skip
    max_records: int = count(
        50_000,
        "Input records in one transaction at most. They are kept until the commit, to be handled again after an abort; "
        "50,000 is 100 ms at 500,000 records/s.",
        low=1, high=10_000_000,
    )  # fmt: skip
    timeout: float = seconds(
        20.0,
        "How long a commit call is resumed. After it the outcome is unknown: a new producer, a fence, the last mark. 20 s "
        "outlasts the loss of one broker (9 to 17 s measured).",
        low=1.0, high=600.0,
    )  # fmt: skip
    transaction_timeout: float = seconds(
        30.0,
        "When the broker aborts a transaction that nobody ends; an open one holds back every read_committed reader of the "
        "output. Longer than commit.timeout, and at most the broker's transaction.max.timeout.ms.",
        low=2.0, high=900.0,
    )  # fmt: skip
    slow: float = seconds(
        1.0,
        "A commit or abort that takes longer taints its producer: the request may have been sent twice, so the next "
        "transaction begins on a new one.",
        low=0.05, high=60.0,
    )  # fmt: skip
    renew_after: float = seconds(
        DAY,
        "An idle partition makes one empty transaction this often, so that its producer id (broker default 7 days) does "
        "not expire: an expired id brings zombies back to life.",
        low=1.0, high=5 * DAY,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_section(self, "commit")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """How the state gets into Kafka."""

    delta_interval: float | Literal["commit", "off"] = seconds(
        "commit",
        "How often the changed keys are written. commit: with every transaction, so nothing is replayed after a crash and "
        "handlers may be non-deterministic. Seconds or off: less is written, the gap is replayed, and the handler must be "
        "deterministic.",
        low=0.1, high=3600.0, words=("commit", "off"),
    )  # fmt: skip
    periodic_full: bool = flag(True, "Whether complete snapshots are taken while running.")
    full_interval: float = seconds(600.0, "Take a full when the last one is older.", low=1.0, high=30 * DAY)
    full_bytes: int = size(
        256_000_000,
        "Take a full when this much increment was written since the last one: it bounds what a restore reads.",
        low=65_536, high=10**13,
    )  # fmt: skip
    slice_budget: float = seconds(
        0.005,
        "Longest time that one slice of a full may hold up processing; a slice is taken at a commit.",
        low=0.0005, high=10.0,
    )  # fmt: skip
    keep: int = count(
        3, "Proven fulls that are kept. What lies before the oldest one is truncated.", low=1, high=1000
    )
    on_stop: bool = flag(True, "Whether a clean stop takes a full, so that the next start replays nothing.")
    chunk_bytes: int = size(
        256_000,
        "Size of one chunk of a full before compression; some hundred keys restore fastest.",
        low=4096, high=50_000_000,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_section(self, "snapshot")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSettings:
    """Getting the state back."""

    deadline: float = seconds(
        300.0, "How long a restore may wait for data it needs before the partition fails.", low=1.0, high=DAY
    )
    attempts: int = count(
        3, "How often a restore is planned again when records vanish under it (truncated meanwhile).", low=1, high=100
    )
    queue_bytes: int = size(
        64_000_000, "Read-ahead of one restore reader; partitions restore side by side.", low=1_048_576, high=2 * 10**9
    )

    def __post_init__(self) -> None:
        check_section(self, "restore")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """How records move from the manager thread to the partitions' threads."""

    high: int = count(20_000, "Records in a mailbox at which its partition is paused.", low=2, high=10_000_000)
    low: int = count(5_000, "Records in a mailbox at which its partition is resumed.", low=0, high=10_000_000)
    batch: int = count(
        1000, "Records taken from the client at once; more was not faster.", low=1, high=1_000_000
    )
    poll_timeout: float = seconds(
        0.02,
        "Longest wait for a batch to fill; it adds to latency when the load is low, and reports are read this often.",
        low=0.001, high=0.1,
    )  # fmt: skip
    prefetch_records: int = count(
        50_000, "Records that the client reads ahead for each partition.", low=1, high=10_000_000
    )
    prefetch_bytes: int = size(
        64_000_000, "Bytes that the client reads ahead in all.", low=1_048_576, high=2 * 10**9
    )

    def __post_init__(self) -> None:
        check_section(self, "flow")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSettings:
    """How the outputs and increments are sent."""

    origin: bool = flag(
        True,
        "Whether each output carries a header with its input partition, transaction and ordinal (half a microsecond a "
        "record): needed to verify outputs and to complete a torn transaction.",
    )
    compression: Literal["none", "lz4", "zstd", "snappy", "gzip"] = choice(
        "none",
        "Compression of batches on the wire and on the brokers' disks. none is fastest on one machine, lz4 over a network.",
        "none", "lz4", "zstd", "snappy", "gzip",
    )  # fmt: skip
    linger: float = seconds(
        0.005, "How long a batch may wait to fill; a commit flushes, so it adds no latency.", high=1.0
    )
    queue_bytes: int = size(
        64_000_000,
        "Unsent bytes one producer may hold; the client's own default would allow 1 GB for every partition.",
        low=1_048_576, high=2 * 10**9,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_section(self, "output")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSettings:
    """What happens when something breaks."""

    on_partition_failure: Literal["park", "exit"] = choice(
        "park",
        "park: a failed partition stays assigned and paused, the others stay live, `holdfast retry` tries it again. exit: "
        "the process stops.",
        "park", "exit",
    )  # fmt: skip
    fence_limit: int = count(
        5, "So many fences of one partition within fence_window, and it fails: two owners fight.", low=1, high=1000
    )
    fence_window: float = seconds(600.0, "The window of fence_limit.", low=1.0, high=DAY)

    def __post_init__(self) -> None:
        check_section(self, "failure")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What the process says."""

    format: Literal["auto", "json", "console"] = choice(
        "auto", "auto: console on a terminal, else one JSON object a line.", "auto", "json", "console"
    )
    level: Literal["debug", "info", "warning", "error"] = choice(
        "info", "Least severe event that is logged.", "debug", "info", "warning", "error"
    )

    def __post_init__(self) -> None:
        check_section(self, "log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything a service can be told. Raises SettingsError when values contradict each other."""

    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    service: ServiceSettings = field(default_factory=ServiceSettings)
    group: GroupSettings = field(default_factory=GroupSettings)
    commit: CommitSettings = field(default_factory=CommitSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    restore: RestoreSettings = field(default_factory=RestoreSettings)
    flow: FlowSettings = field(default_factory=FlowSettings)
    output: OutputSettings = field(default_factory=OutputSettings)
    failure: FailureSettings = field(default_factory=FailureSettings)
    log: LogSettings = field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        from holdfast.config.agreement import check_agreement  # it needs this module's types

        check_agreement(self)


def sections() -> dict[str, type[Any]]:
    """Every section by its dotted name, in the order of the documentation."""
    tree: dict[str, type[Any]] = {}
    for entry in fields(Settings):
        tree[entry.name] = entry.default_factory  # type: ignore[assignment]
    tree["kafka.security"] = SecuritySettings
    return tree
