"""Turns settings into the configuration of each Kafka client. Pure: it returns dictionaries and creates no client.

The Kafka adapter adds the callbacks (logger, stats_cb, error_cb, on_delivery of the full producer).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Literal

from statehold.config.common.errors import Problem, SettingsError
from statehold.config.settings import Settings
from statehold.config.token import TokenFile

#: `oauth_cb` is the only value that is neither text nor a number
ClientConfig = dict[str, Any]
Isolation = Literal["read_committed", "read_uncommitted"]

# librdkafka adds this to fetch.max.bytes before it compares it with receive.message.max.bytes.
_FETCH_OVERHEAD: Final = 512
_FETCH: Final = 8_000_000
_READER_FETCH: Final = 8_000_000
_SMALL_FETCH: Final = 1_000_000
#: messages that a small reader reads ahead
_SMALL_AHEAD: Final = 10_000


def consumer(settings: Settings, group_id: str) -> ClientConfig:
    """The live consumer of a process: a member of the service's group; it commits nothing by itself."""
    flow, group = settings.flow, settings.group
    config = _common(settings) | {
        "group.id": group_id,
        "statistics.interval.ms": _ms(settings.kafka.statistics_interval),
        "max.poll.interval.ms": _ms(group.max_poll_interval),
        "queued.min.messages": flow.prefetch_records,
        "queued.max.messages.kbytes": _kbytes(flow.prefetch_bytes),
        # The default of 50 MB allocates new pages for each response of many partitions, which the kernel clears.
        "fetch.max.bytes": _FETCH,
        # As soon as the read-ahead has room, the client asks for the partitions that it looked at first. If these have
        # no records, the others wait with them: up to 0.5 s by default.
        "fetch.wait.max.ms": 100,
        "enable.partition.eof": False,
        **_reading("read_committed"),
        **_membership(settings),
    }
    config |= settings.kafka.extra.for_clients("consumer")
    _fit_fetch(config)
    return config


def producer(settings: Settings, transactional_id: str) -> ClientConfig:
    """The transactional producer of one partition. Raises SettingsError for an empty id."""
    if not transactional_id:
        raise SettingsError(Problem(key="transactional.id", cause="is empty: outputs would not be transactional"))
    commit = settings.commit
    return (
        _common(settings)
        | _writing(settings)
        | {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": _ms(commit.transaction_timeout),
            # The coordinator answers CONCURRENT_TRANSACTIONS until the last commit's markers are written. The
            # default wait of 100 ms before a retry would limit the commit rate; the small maximum bounds the
            # growth in an outage.
            "retry.backoff.ms": 2,
            "retry.backoff.max.ms": 200,
            # Room for the outputs and the delta of one transaction, so that the handler does not wait for
            # acknowledgements.
            "queue.buffering.max.messages": max(100_000, 4 * commit.max_records),
        }
        | settings.kafka.extra.for_clients("producer")
    )


def full_producer(settings: Settings) -> ClientConfig:
    """The second producer of a partition, for full snapshots: idempotent, not transactional."""
    return (
        _common(settings)
        | _writing(settings)
        | {"retry.backoff.ms": 20, "retry.backoff.max.ms": 1000, "queue.buffering.max.messages": 100_000}
        # A chunk is already compressed; compressing it twice costs time and gains nothing.
        | settings.kafka.extra.for_clients("producer")
        | {"compression.type": "none"}
    )


def reader(
    settings: Settings, group: str, *, isolation: Isolation = "read_committed", small: bool = False
) -> ClientConfig:
    """A consumer for restores, verifiers and tools: assign() only, commits nothing, joins no group.

    `group` is the service's group id; the reader's own group id begins with it, so that a prefixed ACL covers it. Fetch
    settings of `kafka.extra` are for live reading and do not apply here. `small` reads little ahead, because each
    message takes some 300 bytes more than its content: for records of a user, which may be short.
    """
    config = _common(settings) | {
        "group.id": f"{group}.reader",
        "group.protocol": "classic",
        "enable.partition.eof": True,
        "check.crcs": True,
        # The end of a partition is seen when an empty fetch returns: 13 ms with this, 0.5 s with the default.
        "fetch.wait.max.ms": 10,
        "fetch.message.max.bytes": _SMALL_FETCH if small else _READER_FETCH,
        "fetch.max.bytes": 64_000_000,
        "queued.min.messages": _SMALL_AHEAD if small else 1_000_000,
        "queued.max.messages.kbytes": _kbytes(settings.restore.queue_bytes),
        **_reading(isolation),
    }
    _fit_fetch(config)
    return config


def offsets(settings: Settings, group_id: str, *, isolation: Isolation = "read_committed") -> ClientConfig:
    """A consumer that reads the group's committed offsets without joining it: it never subscribes.

    With read_committed it waits while an offset is part of an open transaction.
    """
    return _common(settings) | {"group.id": group_id, "group.protocol": "classic", **_reading(isolation)}


def lock(settings: Settings, group_id: str, session: float) -> ClientConfig:
    """A member of a group that serves as a lock: it reads nothing, and leaves `session` seconds after a kill."""
    return _common(settings) | {
        "group.id": group_id,
        "group.protocol": "classic",
        "partition.assignment.strategy": "range",
        "session.timeout.ms": _ms(session),
        "heartbeat.interval.ms": _ms(session / 5),
        **_reading("read_committed"),
    }


def admin(settings: Settings) -> ClientConfig:
    """An AdminClient. Keep a reference to it until its futures are done."""
    return _common(settings)


def _common(settings: Settings) -> ClientConfig:
    kafka, security = settings.kafka, settings.kafka.security
    config: ClientConfig = {
        "bootstrap.servers": ",".join(server.strip() for server in kafka.bootstrap_servers.split(",")),
        "client.id": kafka.client_id or settings.service.identity,
        "socket.timeout.ms": _ms(kafka.socket_timeout),
        "socket.connection.setup.timeout.ms": _ms(kafka.connection_timeout),
        "socket.keepalive.enable": True,
        # The client waits this long before it reports a missing topic; the default of 30 s would outlast the
        # commit, whose error would then be a time-out that names no topic.
        "topic.metadata.propagation.max.ms": 10_000,
        # The default of 10 s would be added to every outage.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        # If no broker can be reached, the default (rebootstrap) forgets all known brokers, and a transactional call
        # that waits for one of them then never returns, whatever its timeout (librdkafka issue 5511; seen with one
        # broken connection to a cluster of one broker).
        "metadata.recovery.strategy": "none",
        # A producer's default is true, which would create a misspelt topic.
        "allow.auto.create.topics": False,
        "security.protocol": security.protocol,
    }
    optional = {
        "client.rack": kafka.rack,
        "sasl.mechanism": security.sasl_mechanism,
        "sasl.username": security.sasl_username,
        "sasl.password": security.sasl_password.reveal(),
        "ssl.ca.location": security.ssl_ca_location,
        "ssl.certificate.location": security.ssl_certificate_location,
        "ssl.key.location": security.ssl_key_location,
        "ssl.key.password": security.ssl_key_password.reveal(),
        "sasl.oauthbearer.method": "oidc" if security.oauth_token_url else "",
        "sasl.oauthbearer.token.endpoint.url": security.oauth_token_url,
        "sasl.oauthbearer.client.id": security.oauth_client_id,
        "sasl.oauthbearer.client.secret": security.oauth_client_secret.reveal(),
        "sasl.oauthbearer.scope": security.oauth_scope,
        "oauth_cb": TokenFile(security.oauth_token_file) if security.oauth_token_file else "",
    }
    config.update({key: value for key, value in optional.items() if value})
    return config | kafka.extra.for_clients("every")


def _reading(isolation: Isolation) -> ClientConfig:
    return {
        "isolation.level": isolation,
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # A full queue delays the next fetch by this much; the default of 1 s causes gaps of 1 s.
        "fetch.queue.backoff.ms": 5,
        "fetch.error.backoff.ms": 100,
    }


def static_id(settings: Settings) -> str:
    """Return the name of a static member; "" for a dynamic one."""
    group = settings.group
    return group.instance_id or (settings.service.instance if group.membership == "static" else "")


def stand_in(settings: Settings, group_id: str) -> ClientConfig:
    """A classic member that takes over the name of a static member in order to leave under that name."""
    classic = replace(settings, group=replace(settings.group, protocol="classic"))
    return _common(settings) | {"group.id": group_id, **_reading("read_committed"), **_membership(classic)}


def _membership(settings: Settings) -> ClientConfig:
    group = settings.group
    config: ClientConfig = {"group.protocol": group.protocol}
    if name := static_id(settings):
        config["group.instance.id"] = name
    if group.protocol == "classic":
        # With the consumer protocol, the broker sets assignor and session times; the client rejects them.
        config["partition.assignment.strategy"] = group.assignor
        config["session.timeout.ms"] = _ms(group.session_seconds)
        config["heartbeat.interval.ms"] = _ms(group.heartbeat_seconds)
    return config


def _writing(settings: Settings) -> ClientConfig:
    output = settings.output
    return {
        "enable.idempotence": True,
        "acks": "all",
        "partitioner": "murmur2_random",
        "linger.ms": output.linger * 1000,
        # Fewer, larger requests: the broker may share these cores, and a commit flushes anyway.
        "batch.size": 1_000_000,
        "batch.num.messages": 100_000,
        "compression.type": output.compression,
        "message.max.bytes": settings.kafka.message_max_bytes,
        "message.timeout.ms": _ms(settings.commit.timeout),
        "queue.buffering.max.kbytes": _kbytes(output.queue_bytes),
    }


def _fit_fetch(config: ClientConfig) -> None:
    """librdkafka rejects a fetch limit below the size requested for one partition."""
    wanted = int(config.get("fetch.message.max.bytes", 0))
    config["fetch.max.bytes"] = max(int(config.get("fetch.max.bytes", 52_428_800)), wanted)
    config["receive.message.max.bytes"] = max(100_000_000, int(config["fetch.max.bytes"]) + _FETCH_OVERHEAD)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _kbytes(size: int) -> int:
    return max(1, size // 1024)
