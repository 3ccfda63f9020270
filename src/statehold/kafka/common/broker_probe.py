"""Ask by a client that was made for this question alone which brokers there are; on the caller's thread."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from statehold.config import client
from statehold.config.settings import Settings
from statehold.kafka.common.transaction_taint import quiet_logger

_ASK: Final = 10.0


def probe_brokers(settings: Settings) -> frozenset[int]:
    """The brokers that a new client of this service is told of. Blocks for ten seconds; raises KafkaException."""
    config: dict[str, Any] = {**client.admin(settings), "logger": quiet_logger("witness")}
    return frozenset(AdminClient(config).list_topics(timeout=_ASK).brokers)


def listed_brokers(bootstrap: str, timeout: float) -> frozenset[int] | None:
    """For the development broker: list topics as an admin client does, and return the ids that the answer names.

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
