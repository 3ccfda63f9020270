"""An output record on its way to the producer."""

from __future__ import annotations

#: Positional arguments of confluent_kafka's produce, because keywords would cost more than the rest of a send:
#: (topic, value, key, partition, None, None, timestamp in ms, headers). Partition -1 means the producer's partitioner,
#: timestamp 0 means now.
Sent = tuple[str, bytes | None, str | bytes | None, int, None, None, int, list[tuple[str, bytes]] | None]
