"""Settings of the cluster, of the connections to it, and of the membership in the group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from statehold.config.common.option import (
    NAME_FORM,
    NAME_PATTERN,
    check_section,
    choice,
    count,
    flag,
    seconds,
    secret,
    size,
    text,
)
from statehold.config.common.secret import Secret
from statehold.config.librdkafka.extra import NO_EXTRA, Extra

# A drain holds the manager, so all partitions wait. 15 s outlasts the loss of one broker (10 s measured).
_DRAIN_CAP: Final = 15.0
_CLASSIC_SESSION: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """How to reach brokers that want encryption or a login. Goes to every client alike."""

    protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = choice(
        "plaintext",
        "Encryption and login. In production a password never travels without TLS: PLAIN needs sasl_ssl.",
        "plaintext",
        "ssl",
        "sasl_plaintext",
        "sasl_ssl",
    )
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] = choice(
        "",
        "How to log in; needed exactly when the protocol starts with sasl. SCRAM-SHA-512 where you can choose.",
        "",
        "PLAIN",
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
        "OAUTHBEARER",
        "GSSAPI",
    )
    sasl_username: str = text("", "User name for PLAIN and SCRAM.")
    sasl_password: Secret = secret("Password for PLAIN and SCRAM. Give it in the secrets directory.")  # noqa: RUF009
    oauth_token_url: str = text(
        "",
        "OAUTHBEARER: the token endpoint of an OpenID provider, asked with client credentials. Its certificate is "
        "checked against the system's CAs, or kafka.extra's https.ca.location.",
        pattern=r"|https?://[^\s]+",
        form="an http or https URL",
    )
    oauth_client_id: str = text("", "OAUTHBEARER: who asks the token endpoint.")
    oauth_client_secret: Secret = secret(  # noqa: RUF009
        "OAUTHBEARER: its secret there. Give it in the secrets directory."
    )
    oauth_scope: str = text("", "OAUTHBEARER: what the token is asked for, where the provider wants it.")
    oauth_token_file: str = text(
        "",
        "OAUTHBEARER without an endpoint: a file with a token (JWT) that somebody else keeps fresh, as Kubernetes and "
        "Vault agents do. It is read whenever a client needs a token.",
    )
    ssl_ca_location: str = text("", "File or directory of CA certificates; empty uses the system's.")
    ssl_certificate_location: str = text("", "PEM file of this client's certificate, for mutual TLS.")
    ssl_key_location: str = text("", "PEM file of this client's private key, for mutual TLS.")
    ssl_key_password: Secret = secret("Passphrase of the private key.")  # noqa: RUF009

    def __post_init__(self) -> None:
        check_section(self, "kafka.security")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """The cluster and the connections to it."""

    bootstrap_servers: str = text(
        "127.0.0.1:9092",
        "Comma-separated host:port of some brokers; name at least two of a real cluster.",
        pattern=r"[^\s,]+:\d{1,5}(\s*,\s*[^\s,]+:\d{1,5})*",
        form="host:port, or several with commas between",
    )
    client_id: str = text(
        "",
        "Name in the brokers' logs, metrics and quotas; empty uses service.instance.",
        pattern=NAME_PATTERN,
        form=NAME_FORM,
    )
    rack: str = text("", "Where this process runs; brokers then serve reads from a replica of the same rack.")
    socket_timeout: float = seconds(
        6.0,
        "How long one request may stay unanswered. Short, so that a frozen broker costs seconds; not "
        "shorter, because a commit request that is repeated after this time taints its producer.",
        low=1.0,
        high=60.0,
    )
    connection_timeout: float = seconds(
        3.0, "How long opening a connection may take, TLS and login included.", low=1.0, high=60.0
    )
    statistics_interval: float = seconds(
        1.0,
        "How often a client reports its figures: producer id and epoch, and the commit requests sent (a "
        "sign of a retried commit). 0 turns them off, and with them that sign.",
        high=3600.0,
    )
    outage: float | Literal["wait"] = seconds(
        "wait",
        "What a running service does while it cannot reach Kafka: wait until it is back, telling so once a minute, or "
        "leave after so many seconds, with an exit code of its own, for its supervisor to decide.",
        low=10.0,
        high=30 * 86_400.0,
        words=("wait",),
    )
    message_max_bytes: int = size(
        1_000_000,
        "Largest message we send; a delta above it is cut into parts. At most `max.message.bytes` of our topics.",
        low=16_384,
        high=100_000_000,
    )
    security: SecuritySettings = field(default_factory=SecuritySettings)
    extra: Extra = field(default=NO_EXTRA)

    def __post_init__(self) -> None:
        check_section(self, "kafka")
        object.__setattr__(self, "extra", Extra.of(self.extra))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Membership in the consumer group."""

    protocol: Literal["classic", "consumer"] = choice(
        "classic",
        "classic is the cooperative-sticky protocol of all brokers; consumer is KIP-848 (brokers of 4.0 and "
        "later), whose session times are set on the broker or the group, not here.",
        "classic",
        "consumer",
    )
    assignor: Literal["cooperative-sticky", "range"] = choice(
        "cooperative-sticky",
        "Of the classic protocol. range takes every partition away at each rebalance; it is here for groups that come "
        "from it: one process after the other changes to protocol consumer, and from there to cooperative-sticky.",
        "cooperative-sticky",
        "range",
    )
    membership: Literal["dynamic", "static"] = choice(
        "dynamic",
        "static: the process has a place in the group by its name (service.instance). It keeps its partitions over a "
        "stop, so that a restart within the session moves nothing; whoever is killed blocks them as long as that.",
        "dynamic",
        "static",
    )
    instance_id: str = text(
        "",
        "The name of a static member where it is not service.instance; it makes the member static. Two processes of "
        "one name throw each other out.",
        pattern=NAME_PATTERN,
        form=NAME_FORM,
    )
    leave_on_stop: bool = flag(
        False,
        "Whether a static member that stops gives its partitions to the others at once (as a dynamic one always does): "
        "for scaling in. Also by `statehold run --leave` and by `statehold drain`.",
    )
    join_patience: float = seconds(
        120.0,
        "How long a static member waits for its name while the group still has another member of it: longer than a "
        "session. Protocol consumer; with classic the newcomer takes the name over at once.",
        low=1.0,
        high=86_400.0,
    )
    session_timeout: float | Literal["auto"] = seconds(
        "auto",
        "How long a silent member keeps its partitions: the takeover time after a kill. auto: 10 s with "
        "classic (the broker's 45 s would be 45 s of standstill; heartbeats have a thread of their own, so "
        "load does not end a session), the broker's with consumer. With consumer it must stay auto.",
        low=6.0,
        high=1800.0,
        words=("auto",),
    )
    heartbeat_interval: float | Literal["auto"] = seconds(
        "auto",
        "How often a member reports, and so how soon it hears of a rebalance. auto: 1 s, or a tenth of a "
        "longer session timeout, with classic; the broker's with consumer. With consumer it must stay auto.",
        low=0.1,
        high=600.0,
        words=("auto",),
    )
    max_poll_interval: float = seconds(
        300.0,
        "How long the manager thread may not poll before the group takes all partitions away. It polls "
        "every few milliseconds, restores included; this catches a process that hangs.",
        low=10.0,
        high=86_400.0,
    )
    standbys: int = count(
        0,
        "How many other instances keep a copy of each partition's state up to date, so that a takeover reads only what "
        "came last (docs/standby.md). A copy takes as much memory as the state, and needs deltas. 0: none; one less "
        "than there are instances: whoever gets a partition has its copy.",
        high=100,
    )
    drain_budget: float | Literal["auto"] = seconds(
        "auto",
        "How long a revoked partition may take to commit what it has processed; what has not committed by "
        "then aborts. The manager waits meanwhile. auto: 0.2 x max_poll_interval, at most 15 s.",
        low=0.1,
        high=3600.0,
        words=("auto",),
    )

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
