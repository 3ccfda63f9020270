"""Converts settings to options of Spark's Kafka source, which uses the names of the Java client."""

from __future__ import annotations

from pathlib import Path

from statehold.config.settings import Settings

_ESCAPED = {'"': '\\"', "\\": "\\\\"}
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def kafka_options(settings: Settings) -> dict[str, str]:
    """Return options for `spark.read.format("kafka")`. Certificates are text: executors lack the files."""
    kafka, security = settings.kafka, settings.kafka.security
    options = {
        "kafka.bootstrap.servers": ",".join(server.strip() for server in kafka.bootstrap_servers.split(",")),
        "kafka.isolation.level": "read_committed",
        "kafka.security.protocol": security.protocol.upper(),
        "kafka.max.partition.fetch.bytes": str(max(8_000_000, kafka.message_max_bytes + 1024)),
        # The connector generates group ids, so it needs a prefix that an ACL can cover.
        "groupIdPrefix": "statehold-spark",
    }
    mechanism = security.sasl_mechanism
    if mechanism:
        options["kafka.sasl.mechanism"] = mechanism
    if mechanism in _MODULES:
        user, password = _quoted(security.sasl_username), _quoted(security.sasl_password.reveal())
        options["kafka.sasl.jaas.config"] = f"{_MODULES[mechanism]} required username={user} password={password};"
    return options | _certificates(settings)


def _certificates(settings: Settings) -> dict[str, str]:
    security, options = settings.kafka.security, {}
    if security.ssl_ca_location:
        options["kafka.ssl.truststore.type"] = "PEM"
        options["kafka.ssl.truststore.certificates"] = Path(security.ssl_ca_location).read_text()
    if security.ssl_certificate_location and security.ssl_key_location:
        options["kafka.ssl.keystore.type"] = "PEM"
        options["kafka.ssl.keystore.certificate.chain"] = Path(security.ssl_certificate_location).read_text()
        options["kafka.ssl.keystore.key"] = Path(security.ssl_key_location).read_text()
        if security.ssl_key_password.reveal():
            options["kafka.ssl.key.password"] = security.ssl_key_password.reveal()
    return options


def _quoted(text: str) -> str:
    return '"' + "".join(_ESCAPED.get(char, char) for char in text) + '"'
