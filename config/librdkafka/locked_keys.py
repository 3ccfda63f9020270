"""The librdkafka settings that `kafka.extra` rejects, each with its reason, and their aliases."""

from __future__ import annotations

from typing import Final

LOCKED: Final[dict[str, str]] = {
    "isolation.level": "is read_committed: anything else hands aborted transactions to the handler",
    "enable.auto.commit": ("is false: offsets are committed inside the transaction, with the outputs, or not at all"),
    "enable.auto.offset.store": "is false: a stored offset could be committed outside the transaction",
    "enable.idempotence": "is true: transactions need it, and without it a retry writes a record twice",
    "acks": "is all: a record that one broker holds is lost with that broker, after statehold reported it as committed",
    "retries": ("is unlimited within the deadlines: giving up early fails a transaction that would have committed"),
    "max.in.flight.requests.per.connection": (
        "is the client's limit for idempotence: more could reorder records of a key"
    ),
    "transactional.id": (
        "is <namespace><service>.<input>.<partition>: only a static id lets a new owner fence the old one"
    ),
    "auto.offset.reset": ("is error: a position that the broker no longer has must stop the partition, not move it"),
    "allow.auto.create.topics": (
        "is false: a misspelt topic must be an error, not a new topic; use `statehold topics create`"
    ),
    "partition.assignment.strategy": ("is group.assignor: cooperative-sticky, or for groups that come from it range"),
    "partitioner": (
        "is murmur2_random: keys must land where Java producers put them; an Output takes its own partitioner"
    ),
    "plugin.library.paths": "is rejected: it loads foreign code into the process",
    "ssl.engine.location": "is rejected: it loads foreign code into the process",
    "ssl.providers": "is rejected: it loads foreign code into the process",
    "sasl.kerberos.kinit.cmd": ("is rejected: it runs a shell command; keep the ticket fresh outside, with k5start"),
    "enable.sasl.oauthbearer.unsecure.jwt": "is rejected: an unsigned token proves no identity",
    "enable.gapless.guarantee": (
        "is rejected: it stops the producer in cases where a transaction is aborted and retried"
    ),
    "enable.partition.eof": ("is on where a restore needs the end of a topic, and off for live reading"),
    "delivery.report.only.error": (
        "is rejected: a full snapshot needs every acknowledgement, and the commit reports failures"
    ),
    "group.id": "is <namespace><service>; use service.namespace to run two environments side by side",
    "offset.store.method": "is rejected: offsets belong to the transaction",
    "auto.commit.interval.ms": "is rejected: offsets are committed inside the transaction",
    "queuing.strategy": "is rejected: last-in-first-out reorders the records of a key",
    "message.timeout.ms": "is commit.timeout: a message that is later than that fails the commit anyway",
    "receive.message.max.bytes": "follows from fetch.max.bytes",
}

# Keys for which statehold has its own setting: one value has one place.
OWNED: Final[dict[str, str]] = {
    "transaction.timeout.ms": "commit.transaction_timeout",
    "group.instance.id": "group.instance_id",
    "group.protocol": "group.protocol",
    "session.timeout.ms": "group.session_timeout",
    "heartbeat.interval.ms": "group.heartbeat_interval",
    "max.poll.interval.ms": "group.max_poll_interval",
    "bootstrap.servers": "kafka.bootstrap_servers",
    "client.id": "kafka.client_id",
    "client.rack": "kafka.rack",
    "socket.timeout.ms": "kafka.socket_timeout",
    "socket.connection.setup.timeout.ms": "kafka.connection_timeout",
    "statistics.interval.ms": "kafka.statistics_interval",
    "message.max.bytes": "kafka.message_max_bytes",
    "queued.min.messages": "flow.prefetch_records",
    "queued.max.messages.kbytes": "flow.prefetch_bytes",
    "queue.buffering.max.kbytes": "output.queue_bytes",
    "linger.ms": "output.linger",
    "compression.type": "output.compression",
    "security.protocol": "kafka.security.protocol",
    "sasl.mechanism": "kafka.security.sasl_mechanism",
    "sasl.username": "kafka.security.sasl_username",
    "sasl.password": "kafka.security.sasl_password",
    "sasl.oauthbearer.token.endpoint.url": "kafka.security.oauth_token_url",
    "sasl.oauthbearer.client.id": "kafka.security.oauth_client_id",
    "sasl.oauthbearer.client.secret": "kafka.security.oauth_client_secret",
    "sasl.oauthbearer.scope": "kafka.security.oauth_scope",
    "ssl.ca.location": "kafka.security.ssl_ca_location",
    "ssl.certificate.location": "kafka.security.ssl_certificate_location",
    "ssl.key.location": "kafka.security.ssl_key_location",
    "ssl.key.password": "kafka.security.ssl_key_password",
}

# librdkafka accepts several keys under two names; a lock must hold for both.
ALIASES: Final[dict[str, str]] = {
    "auto.commit.enable": "enable.auto.commit",
    "compression.codec": "compression.type",
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "message.send.max.retries": "retries",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
