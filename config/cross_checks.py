"""Finds settings that contradict one another, although each is legal alone. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from statehold.config.common.errors import Problem, SettingsError
from statehold.config.common.units import format_duration as shown
from statehold.config.librdkafka.client_keys import ALLOWED
from statehold.config.sections.ops import TOKEN_LENGTH
from statehold.config.sections.tree import Sections


def check_agreement(settings: Sections) -> None:
    """Raises SettingsError with every contradiction found."""
    problems = [*_times(settings), *_group(settings), *_sizes(settings), *_security(settings), *_ops(settings)]
    if problems:
        raise SettingsError(problems)


def _times(settings: Sections) -> Iterator[Problem]:
    commit, kafka, snapshot = settings.commit, settings.kafka, settings.snapshot
    if commit.timeout >= commit.transaction_timeout:
        yield _less(
            ("commit.timeout", commit.timeout),
            ("commit.transaction_timeout", commit.transaction_timeout),
            "otherwise the broker aborts first and the commit fails as fenced",
        )
    if settings.sink.url and settings.sink.timeout >= commit.transaction_timeout:
        yield _less(
            ("sink.timeout", settings.sink.timeout),
            ("commit.transaction_timeout", commit.transaction_timeout),
            "otherwise Kafka's transaction may end while the database commits",
        )
    if commit.interval * 3 > commit.transaction_timeout:
        yield _at_most(
            ("commit.interval", commit.interval),
            "a third of ",
            3,
            ("commit.transaction_timeout", commit.transaction_timeout),
            "otherwise transactions time out in normal operation",
        )
    if kafka.socket_timeout >= commit.transaction_timeout:
        yield _less(
            ("kafka.socket_timeout", kafka.socket_timeout),
            ("commit.transaction_timeout", commit.transaction_timeout),
            "otherwise one lost request outlasts the transaction",
        )
    interval = snapshot.delta_interval
    if not isinstance(interval, str) and interval < commit.interval:
        yield _must(
            "snapshot.delta_interval",
            interval,
            f"'commit', 'off' or at least commit.interval ({shown(commit.interval)})",
            f"a delta is part of a commit. Set snapshot.delta_interval to at least {shown(commit.interval)}, or "
            f"commit.interval to at most {shown(interval)}",
        )


def _group(settings: Sections) -> Iterator[Problem]:
    group = settings.group
    if group.standbys and settings.snapshot.delta_interval == "off":
        cause = (
            "must be 0 with snapshot.delta_interval off: a standby replica is built from deltas. Set group.standbys to "
            "0, or snapshot.delta_interval to 'commit' or a duration"
        )
        yield Problem(key="group.standbys", value=str(group.standbys), cause=cause)
    if settings.ops.replica != "off" and not group.standbys:
        yield _must(
            "ops.replica",
            settings.ops.replica,
            "off without group.standbys",
            "there are no standby replicas to query. Set ops.replica to off, or group.standbys to 1",
        )
    if group.membership == "static" and not (group.instance_id or settings.service.instance):
        cause = "needs service.instance: a unique name that the process keeps over a restart"
        yield Problem(key="group.membership", value="'static'", cause=cause)
    if group.protocol == "consumer":
        yield from _broker_side_times(settings)
        return
    if group.heartbeat_seconds * 3 > group.session_seconds:
        yield _at_most(
            ("group.heartbeat_interval", group.heartbeat_seconds),
            "a third of ",
            3,
            ("group.session_timeout", group.session_seconds),
            "otherwise one late heartbeat ends the session",
        )
    if group.session_seconds > group.max_poll_interval:
        yield _at_most(
            ("group.session_timeout", group.session_seconds),
            "",
            1,
            ("group.max_poll_interval", group.max_poll_interval),
            "the client rejects it",
        )
    yield from _drain(settings)


def _drain(settings: Sections) -> Iterator[Problem]:
    group = settings.group
    if group.drain_seconds > 0.5 * group.max_poll_interval:
        yield _at_most(
            ("group.drain_budget", group.drain_seconds),
            "half of ",
            2,
            ("group.max_poll_interval", group.max_poll_interval),
            "the manager does not poll while it waits for drains",
        )


def _broker_side_times(settings: Sections) -> Iterator[Problem]:
    for name, key in (
        ("session_timeout", "session.timeout.ms"),
        ("heartbeat_interval", "heartbeat.interval.ms"),
    ):
        value = getattr(settings.group, name)
        if value != "auto":
            cause = (
                "must stay 'auto' with group.protocol = 'consumer': that protocol takes it from the broker "
                f"(group.consumer.{key}) or the group: kafka-configs.sh --alter --entity-type groups "
                f"--entity-name GROUP --add-config consumer.{key}={round(value * 1000)}"
            )
            yield Problem(key=f"group.{name}", value=shown(value), cause=cause)
    yield from _drain(settings)


def _sizes(settings: Sections) -> Iterator[Problem]:
    flow, snapshot, kafka = settings.flow, settings.snapshot, settings.kafka
    if flow.low >= flow.high:
        cause = (
            f"must be less than flow.high ({flow.high}). Set flow.low to less than {flow.high}, or flow.high to more "
            f"than {flow.low}"
        )
        yield Problem(key="flow.low", value=str(flow.low), cause=cause)
    most, chunk, queue = kafka.message_max_bytes, snapshot.chunk_bytes, settings.output.queue_bytes
    if chunk > most * 0.9:
        yield Problem(
            key="snapshot.chunk_bytes",
            value=str(chunk),
            cause=f"must be at most nine tenths of kafka.message_max_bytes ({most}): a chunk that does not compress "
            f"must still fit into a message. Set snapshot.chunk_bytes to at most {most * 9 // 10}, or "
            f"kafka.message_max_bytes to at least {-(-chunk * 10 // 9)}",
        )
    if queue < 2 * most:
        yield Problem(
            key="output.queue_bytes",
            value=str(queue),
            cause=f"must be at least twice kafka.message_max_bytes ({most}). Set output.queue_bytes to at least "
            f"{2 * most}, or kafka.message_max_bytes to at most {queue // 2}",
        )


#: in a URL, and in libpq's key=value form
_PASSWORD: Final = re.compile(r"//[^/@?]*:[^/@?]+@|\bpassword\s*=", re.IGNORECASE)


def _security(settings: Sections) -> Iterator[Problem]:
    if _PASSWORD.search(settings.sink.url):  # `config show` and process lists show the URL
        yield Problem(key="sink.url", cause="holds a password: put it into sink.password, in the secrets directory")
    security, extra = settings.kafka.security, settings.kafka.extra
    production = settings.service.mode == "production"
    logs_in = security.protocol.startswith("sasl_")
    if logs_in != bool(security.sasl_mechanism):
        cause = f"belongs with kafka.security.protocol sasl_plaintext or sasl_ssl, which is {security.protocol!r}"
        yield Problem(key="kafka.security.sasl_mechanism", value=repr(security.sasl_mechanism), cause=cause)
    if security.sasl_mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512") and not (
        security.sasl_username and security.sasl_password
    ):
        cause = f"{security.sasl_mechanism} needs kafka.security.sasl_username and kafka.security.sasl_password"
        yield Problem(key="kafka.security.sasl_mechanism", value=repr(security.sasl_mechanism), cause=cause)
    yield from _oauth(settings)
    if production and security.protocol == "sasl_plaintext" and security.sasl_mechanism == "PLAIN":
        cause = (
            "PLAIN sends the password in clear text; use sasl_ssl, or SCRAM-SHA-512, or service.mode = 'development'"
        )
        yield Problem(key="kafka.security.protocol", value="'sasl_plaintext'", cause=cause)
    if not production:
        return
    if extra.get("enable.ssl.certificate.verification") == "false":
        cause = (
            "without verification anyone may pose as the broker; trust your CA with "
            "kafka.security.ssl_ca_location, or set service.mode = 'development'"
        )
        yield Problem(key="kafka.extra.enable.ssl.certificate.verification", value="'false'", cause=cause)
    if extra.get("ssl.endpoint.identification.algorithm") == "none":
        cause = "any certificate of the CA could pose as the broker; allowed only with service.mode = 'development'"
        yield Problem(key="kafka.extra.ssl.endpoint.identification.algorithm", value="'none'", cause=cause)
    for key in extra:
        if ALLOWED[key].development_only:
            yield Problem(
                key=f"kafka.extra.{key}", cause="it may log data; allowed only with service.mode = 'development'"
            )


def _oauth(settings: Sections) -> Iterator[Problem]:
    security, extra = settings.kafka.security, settings.kafka.extra
    sources = [name for name in ("oauth_token_url", "oauth_token_file") if getattr(security, name)]
    if security.sasl_mechanism != "OAUTHBEARER":
        for name in sources:
            cause = f"belongs with kafka.security.sasl_mechanism OAUTHBEARER, which is {security.sasl_mechanism!r}"
            yield Problem(key=f"kafka.security.{name}", cause=cause)
        return
    if not sources and extra.get("sasl.oauthbearer.method") != "oidc":
        cause = "OAUTHBEARER needs kafka.security.oauth_token_url (and a client's id and secret) or oauth_token_file"
        yield Problem(key="kafka.security.sasl_mechanism", value="'OAUTHBEARER'", cause=cause)
    if len(sources) == 2:
        cause = "a token comes from kafka.security.oauth_token_url or from a file, not from both"
        yield Problem(key="kafka.security.oauth_token_file", value=repr(security.oauth_token_file), cause=cause)
    credentials = security.oauth_client_id and security.oauth_client_secret
    if security.oauth_token_url and not credentials and not extra.get("sasl.oauthbearer.grant.type"):
        cause = "needs kafka.security.oauth_client_id and kafka.security.oauth_client_secret"
        yield Problem(key="kafka.security.oauth_token_url", value=repr(security.oauth_token_url), cause=cause)
    if settings.service.mode != "production":
        return
    if security.oauth_token_url.startswith("http:"):
        cause = "sends the client's secret in clear text; use https, or service.mode = 'development'"
        yield Problem(key="kafka.security.oauth_token_url", value=repr(security.oauth_token_url), cause=cause)
    if security.protocol == "sasl_plaintext":
        cause = "OAUTHBEARER sends the token in clear text; use sasl_ssl, or service.mode = 'development'"
        yield Problem(key="kafka.security.protocol", value="'sasl_plaintext'", cause=cause)


#: a setting and its seconds
_Time = tuple[str, float]


def _less(low: _Time, high: _Time, why: str) -> Problem:
    """Return the problem that `low` is not less than `high`; it says how to set each, because either may be wrong."""
    (key, value), (other, bound) = low, high
    fix = f"Set {key} to less than {shown(bound)}, or {other} to more than {shown(value)}"
    return _must(key, value, f"less than {other} ({shown(bound)})", f"{why}. {fix}")


def _at_most(low: _Time, part: str, times: int, high: _Time, why: str) -> Problem:
    """Return the problem that `low` is more than a part of `high`, such as a third."""
    (key, value), (other, bound) = low, high
    lowest, highest = math.ceil(value * times * 1000) / 1000, math.floor(bound / times * 1000) / 1000
    fix = f"Set {key} to at most {shown(highest)}, or {other} to at least {shown(lowest)}"
    return _must(key, value, f"at most {part}{other} ({shown(bound)})", f"{why}. {fix}")


def _must(key: str, value: float, bound: str, why: str) -> Problem:
    return Problem(key=key, value=shown(value), cause=f"must be {bound}: {why}")


def _ops(settings: Sections) -> Iterator[Problem]:
    token = settings.ops.token.reveal()
    if token and len(token) < TOKEN_LENGTH:
        yield Problem(key="ops.token", cause=f"is shorter than {TOKEN_LENGTH} characters: it could be guessed")
    if settings.ops.state == "on" and not token:
        yield Problem(key="ops.state", cause="on needs ops.token: otherwise every user of the machine could read state")
