"""The librdkafka settings that `kafka.extra` accepts, with their clients and legal values.

Names and ranges are those of librdkafka 2.16. A key in no table, here or in locked_keys, is rejected, too, because an
unreviewed key may break a guarantee.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Client = Literal["every", "consumer", "producer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKey:
    """One key of the allow-list: the clients it goes to, and its legal values (range, words or any text)."""

    client: Client
    low: int = 0
    high: int = -1
    words: tuple[str, ...] = ()
    secret: bool = False
    development_only: bool = False

    @property
    def allowed(self) -> str:
        if self.words:
            return "one of " + ", ".join(self.words)
        return f"a whole number from {self.low} to {self.high}" if self.high >= self.low else "text"

    def accepts(self, value: str) -> bool:
        if self.words:
            return value in self.words
        if self.high < self.low:
            return True
        digits = value[1:] if value.startswith("-") else value
        return digits.isascii() and digits.isdigit() and self.low <= int(value) <= self.high


_FLAG: Final = ("true", "false")


def _number(client: Client, low: int, high: int) -> ClientKey:
    return ClientKey(client=client, low=low, high=high)


def _words(client: Client, *words: str) -> ClientKey:
    return ClientKey(client=client, words=words)


_TEXT: Final = ClientKey(client="every")
_SECRET: Final = ClientKey(client="every", secret=True)

ALLOWED: Final[dict[str, ClientKey]] = {
    # Finding and keeping connections
    "api.version.request.timeout.ms": _number("every", 1, 300_000),
    "broker.address.family": _words("every", "any", "v4", "v6"),
    "broker.address.ttl": _number("every", 0, 86_400_000),
    "client.dns.lookup": _words("every", "use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "connections.max.idle.ms": _number("every", 0, 2_147_483_647),
    "metadata.max.age.ms": _number("every", 1, 86_400_000),
    "metadata.recovery.rebootstrap.trigger.ms": _number("every", 0, 2_147_483_647),
    "metadata.recovery.strategy": _words("every", "none", "rebootstrap"),
    "reconnect.backoff.max.ms": _number("every", 0, 3_600_000),
    "reconnect.backoff.ms": _number("every", 0, 3_600_000),
    "socket.keepalive.enable": _words("every", *_FLAG),
    "socket.max.fails": _number("every", 0, 1_000_000),
    "socket.nagle.disable": _words("every", *_FLAG),
    "socket.receive.buffer.bytes": _number("every", 0, 100_000_000),
    "socket.send.buffer.bytes": _number("every", 0, 100_000_000),
    "topic.metadata.propagation.max.ms": _number("every", 0, 3_600_000),
    "topic.metadata.refresh.fast.interval.ms": _number("every", 1, 60_000),
    "topic.metadata.refresh.interval.ms": _number("every", -1, 3_600_000),
    "topic.metadata.refresh.sparse": _words("every", *_FLAG),
    # Observing a client
    "debug": ClientKey(client="every", development_only=True),
    "enable.metrics.push": _words("every", *_FLAG),
    "log.connection.close": _words("every", *_FLAG),
    "log_level": _number("every", 0, 7),
    # Encryption beyond kafka.security
    "enable.ssl.certificate.verification": _words("every", *_FLAG),
    "ssl.ca.pem": _TEXT,
    "ssl.certificate.pem": _TEXT,
    "ssl.cipher.suites": _TEXT,
    "ssl.crl.location": _TEXT,
    "ssl.curves.list": _TEXT,
    "ssl.endpoint.identification.algorithm": _words("every", "none", "https"),
    "ssl.key.pem": _SECRET,
    "ssl.keystore.location": _TEXT,
    "ssl.keystore.password": _SECRET,
    "ssl.sigalgs.list": _TEXT,
    # Login beyond kafka.security
    "https.ca.location": _TEXT,
    "https.ca.pem": _TEXT,
    "sasl.kerberos.keytab": _TEXT,
    "sasl.kerberos.min.time.before.relogin": _number("every", 0, 86_400_000),
    "sasl.kerberos.principal": _TEXT,
    "sasl.kerberos.service.name": _TEXT,
    "sasl.oauthbearer.assertion.algorithm": _words("every", "RS256", "ES256"),
    "sasl.oauthbearer.assertion.claim.aud": _TEXT,
    "sasl.oauthbearer.assertion.claim.iss": _TEXT,
    "sasl.oauthbearer.assertion.claim.sub": _TEXT,
    "sasl.oauthbearer.assertion.file": _TEXT,
    "sasl.oauthbearer.assertion.private.key.file": _TEXT,
    "sasl.oauthbearer.assertion.private.key.passphrase": _SECRET,
    "sasl.oauthbearer.config": _SECRET,
    "sasl.oauthbearer.extensions": _TEXT,
    "sasl.oauthbearer.grant.type": _words("every", "client_credentials", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
    "sasl.oauthbearer.metadata.authentication.type": _words("every", "none", "azure_imds", "aws_iam"),
    "sasl.oauthbearer.method": _words("every", "default", "oidc"),
    "sasl.oauthbearer.sub.claim.name": _TEXT,
    # Reading
    "check.crcs": _words("consumer", *_FLAG),
    "coordinator.query.interval.ms": _number("consumer", 1, 3_600_000),
    "fetch.error.backoff.ms": _number("consumer", 0, 300_000),
    "fetch.max.bytes": _number("consumer", 0, 2_147_483_135),
    "fetch.message.max.bytes": _number("consumer", 1, 1_000_000_000),
    "fetch.min.bytes": _number("consumer", 1, 100_000_000),
    "fetch.queue.backoff.ms": _number("consumer", 0, 300_000),
    "fetch.wait.max.ms": _number("consumer", 0, 300_000),
    "group.remote.assignor": ClientKey(client="consumer"),
    # Writing
    "batch.num.messages": _number("producer", 1, 1_000_000),
    "batch.size": _number("producer", 1, 2_147_483_647),
    "compression.level": _number("producer", -1, 12),
    "message.copy.max.bytes": _number("producer", 0, 1_000_000_000),
    "queue.buffering.backpressure.threshold": _number("producer", 1, 1_000_000),
    "queue.buffering.max.messages": _number("producer", 1, 2_147_483_647),
    "request.timeout.ms": _number("producer", 1, 900_000),
    "retry.backoff.max.ms": _number("producer", 1, 300_000),
    "retry.backoff.ms": _number("producer", 1, 300_000),
    "sticky.partitioning.linger.ms": _number("producer", 0, 900_000),
}
