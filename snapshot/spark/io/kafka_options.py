"""Converts settings to options of Spark's Kafka source, which uses the names of the Java client."""

from __future__ import annotations

from statehold.config.java_client import java_security
from statehold.config.settings import Settings


def kafka_options(settings: Settings) -> dict[str, str]:
    """Return options for `spark.read.format("kafka")`."""
    kafka = settings.kafka
    return {
        "kafka.bootstrap.servers": ",".join(server.strip() for server in kafka.bootstrap_servers.split(",")),
        "kafka.isolation.level": "read_committed",
        "kafka.max.partition.fetch.bytes": str(max(8_000_000, kafka.message_max_bytes + 1024)),
        # The connector generates group ids, so it needs a prefix that an ACL can cover.
        "groupIdPrefix": "statehold-spark",
        **{f"kafka.{key}": value for key, value in java_security(settings).items()},
    }
