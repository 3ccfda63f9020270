"""Ask a broker whether it serves; used by the development broker, on the caller's thread."""

from __future__ import annotations

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient


def listed_brokers(bootstrap: str, timeout: float) -> frozenset[int] | None:
    """List topics as an admin client does; return the ids of the brokers that the answer names.

    None when no answer came within `timeout` seconds. Blocks for at most that long.
    """
    quiet: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "socket.timeout.ms": int(timeout * 1000),
    }
    admin = AdminClient(
        {
            **quiet,
            "allow.auto.create.topics": False,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "broker.address.family": "v4",
        }
    )
    try:
        return frozenset(admin.list_topics(timeout=timeout).brokers)
    except KafkaException:
        return None
