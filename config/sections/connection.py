"""Settings of the cluster, of the connections to it, and of the membership in the group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from statehold.config.common.option import (
    NAME_FORM,
    NAME_PATTERN,
    Section,
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

# A drain blocks the manager, so all partitions wait. 15 s outlasts the loss of one broker (10 s measured).
_DRAIN_CAP: Final = 15.0
_CLASSIC_SESSION: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings(Section, name="kafka.security"):
    """How to connect to brokers that need encryption or a login. Every client gets these."""

    protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = choice(
        "plaintext",
        "Encryption and login. In production, PLAIN needs sasl_ssl, so that no password is sent without TLS.",
    )
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] = choice(
        "", "How to log in; required exactly if the protocol starts with sasl. Prefer SCRAM-SHA-512."
    )
    sasl_username: str = text("", "User name for PLAIN and SCRAM.")
    sasl_password: Secret = secret("Password for PLAIN and SCRAM. Give it in the secrets directory.")  # noqa: RUF009
    oauth_token_url: str = text(
        "",
        "OAUTHBEARER: the token endpoint of an OpenID provider, called with client credentials. Its certificate "
        "is checked against the system's CAs, or against https.ca.location in kafka.extra.",
        pattern=r"|https?://[^\s]+",
        form="an http or https URL",
    )
    oauth_client_id: str = text("", "OAUTHBEARER: the client id at the token endpoint.")
    oauth_client_secret: Secret = secret(  # noqa: RUF009
        "OAUTHBEARER: the client secret at the token endpoint. Give it in the secrets directory."
    )
    oauth_scope: str = text("", "OAUTHBEARER: the scope of the token, if the provider needs one.")
    oauth_token_file: str = text(
        "",
        "OAUTHBEARER without an endpoint: a file with a token (JWT) that an agent such as Kubernetes or Vault "
        "keeps fresh. A client reads it whenever it needs a token.",
    )
    ssl_ca_location: str = text("", "File or directory of CA certificates; empty uses the system's.")
    ssl_certificate_location: str = text("", "PEM file of this client's certificate, for mutual TLS.")
    ssl_key_location: str = text("", "PEM file of this client's private key, for mutual TLS.")
    ssl_key_password: Secret = secret("Passphrase of the private key.")  # noqa: RUF009


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings(Section, name="kafka"):
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
    rack: str = text("", "Location of this process; brokers serve reads from a replica in the same rack.")
    socket_timeout: float = seconds(
        6.0,
        "How long a request may remain unanswered. Short, so that a frozen broker costs seconds. Not shorter, "
        "because a commit request that is repeated after this time makes its producer suspect.",
        low=1.0,
        high=60.0,
    )
    connection_timeout: float = seconds(
        3.0, "How long opening a connection may take, TLS and login included.", low=1.0, high=60.0
    )
    statistics_interval: float = seconds(
        1.0,
        "How often the consumer reports the state of its connections, which shows an outage. 0 disables the "
        "reports, and with them the detection of an outage while no record arrives.",
        high=3600.0,
    )
    outage: float | Literal["wait"] = seconds(
        "wait",
        "What a running service does while it cannot reach Kafka. wait: wait, and log it once a minute. "
        "Seconds: exit after that time with a separate exit code, so that the supervisor decides.",
        low=10.0,
        high=30 * 86_400.0,
    )
    message_max_bytes: int = size(
        1_000_000,
        "Largest message that statehold sends; a larger delta is split into chunks. At most `max.message.bytes` "
        "of the service's topics.",
        low=16_384,
        high=100_000_000,
    )
    security: SecuritySettings = field(default_factory=SecuritySettings)
    extra: Extra = field(default=NO_EXTRA)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        object.__setattr__(self, "extra", Extra.of(self.extra))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings(Section, name="group"):
    """Membership in the consumer group."""

    protocol: Literal["classic", "consumer"] = choice(
        "classic",
        "classic: the cooperative-sticky protocol of all brokers. consumer: KIP-848 (brokers of 4.0 and later); "
        "the broker or the group sets its session times.",
    )
    assignor: Literal["cooperative-sticky", "range"] = choice(
        "cooperative-sticky",
        "Of the classic protocol. range revokes every partition at each rebalance. It exists to migrate groups "
        "that use it: change one process after the other to protocol consumer, and from there to "
        "cooperative-sticky.",
    )
    membership: Literal["dynamic", "static"] = choice(
        "dynamic",
        "static: the group knows the process by its name (service.instance). The process keeps its partitions "
        "over a stop, so a restart within the session moves nothing. A killed process blocks its partitions for "
        "the session timeout.",
    )
    instance_id: str = text(
        "",
        "Name of a static member if it differs from service.instance; it makes the member static. Two processes "
        "with one name fence each other.",
        pattern=NAME_PATTERN,
        form=NAME_FORM,
    )
    leave_on_stop: bool = flag(
        False,
        "Whether a static member that stops gives its partitions to the others at once, as a dynamic member "
        "always does. For scaling in. Also by `statehold run --leave` and by `statehold drain`.",
    )
    join_patience: float = seconds(
        120.0,
        "How long a static member waits for its name while the group still has another member of that name; "
        "longer than a session. Protocol consumer only: with classic the new member takes the name over at "
        "once.",
        low=1.0,
        high=86_400.0,
    )
    session_timeout: float | Literal["auto"] = seconds(
        "auto",
        "How long a silent member keeps its partitions: the takeover time after a kill. auto: 10 s with classic "
        "(the broker's default is 45 s; heartbeats have a separate thread, so load does not end a session), the "
        "broker's value with consumer. With consumer it must stay auto.",
        low=6.0,
        high=1800.0,
    )
    heartbeat_interval: float | Literal["auto"] = seconds(
        "auto",
        "How often a member reports, and how soon it learns of a rebalance. auto: with classic 1 s, or a tenth "
        "of a longer session timeout; with consumer the broker's value. With consumer it must stay auto.",
        low=0.1,
        high=600.0,
    )
    max_poll_interval: float = seconds(
        300.0,
        "How long the manager thread may not poll before the group revokes all its partitions. It polls every "
        "few milliseconds, also during restores; this detects a process that hangs.",
        low=10.0,
        high=86_400.0,
    )
    standbys: int = count(
        0,
        "Number of other instances that keep a copy of each partition's state up to date, so that a takeover "
        "reads only the newest changes. A copy takes as much memory as the state, and needs "
        "deltas. 0: none. One less than the number of instances: every instance has a copy of every partition.",
        high=100,
    )
    drain_budget: float | Literal["auto"] = seconds(
        "auto",
        "How long a revoked partition may take to commit the records that it has processed; the rest is "
        "aborted. The manager waits meanwhile. auto: 0.2 x max_poll_interval, at most 15 s.",
        low=0.1,
        high=3600.0,
    )

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
