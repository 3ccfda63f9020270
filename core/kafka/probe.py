"""Ask a broker whether it serves; used by the development broker, on the caller's thread."""

from __future__ import annotations

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient


def listed_brokers(bootstrap: str, timeout: float) -> frozenset[int] | None:
    """List topics as an admin client does; return the ids of the brokers that the answer names.

    None when no answer came within `timeout` seconds. Blocks for at most that long.
    """
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap,
        "log_level": 0,  # a broker that is down is an answer here, not news
        "allow.auto.create.topics": False,
        "socket.timeout.ms": int(timeout * 1000),
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        # No broker.address.family=v4: with it, not even 127.0.0.1 resolves on a machine without a network.
    }
    try:
        return frozenset(AdminClient(settings).list_topics(timeout=timeout).brokers)
    except KafkaException:
        return None
