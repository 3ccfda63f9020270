"""Lists the live brokers with a client made for this question alone, on the caller's thread."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from statehold.config import client
from statehold.config.settings import Settings
from statehold.kafka.common.client_log import quiet

#: seconds for one answer
_LIST_TIMEOUT: Final = 10.0


def probe_brokers(settings: Settings) -> frozenset[int]:
    """Return the brokers that the cluster names to a new client of this service. Blocks for 10 s at most.

    :raises KafkaException: no broker answers.
    """
    config = quiet(client.admin(settings), "witness")
    return frozenset(AdminClient(config).list_topics(timeout=_LIST_TIMEOUT).brokers)


def listed_brokers(bootstrap: str, timeout: float) -> frozenset[int] | None:
    """Return the brokers that the development broker names; None without an answer within `timeout` seconds."""
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap,
        "log_level": 0,  # because a broker that is down is an expected answer here
        "allow.auto.create.topics": False,
        "socket.timeout.ms": int(timeout * 1000),
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
        # No broker.address.family=v4, because with it not even 127.0.0.1 resolves on a machine without a network.
    }
    try:
        return frozenset(AdminClient(settings).list_topics(timeout=timeout).brokers)
    except KafkaException:
        return None
