"""Turns the security settings into properties of the Java client, for Spark and for Kafka's own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from statehold.config.settings import Settings

_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_security(settings: Settings) -> dict[str, str]:
    """Return the properties. Certificates are text, because another machine lacks the files.

    :raises OSError: a certificate or key cannot be read.
    """
    security = settings.kafka.security
    properties = {"security.protocol": security.protocol.upper()}
    if security.sasl_mechanism:
        properties["sasl.mechanism"] = security.sasl_mechanism
    if module := _LOGIN_MODULES.get(security.sasl_mechanism):
        user, password = _quoted(security.sasl_username), _quoted(security.sasl_password.reveal())
        properties["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    if security.ssl_ca_location:
        properties["ssl.truststore.type"] = "PEM"
        properties["ssl.truststore.certificates"] = Path(security.ssl_ca_location).read_text()
    if security.ssl_certificate_location and security.ssl_key_location:
        properties["ssl.keystore.type"] = "PEM"
        properties["ssl.keystore.certificate.chain"] = Path(security.ssl_certificate_location).read_text()
        properties["ssl.keystore.key"] = Path(security.ssl_key_location).read_text()
        if security.ssl_key_password:
            properties["ssl.key.password"] = security.ssl_key_password.reveal()
    return properties


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
