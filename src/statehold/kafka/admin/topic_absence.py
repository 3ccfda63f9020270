"""Proves that a topic or partition does not exist. A slow or unreachable broker is no proof.

One broker may not know yet that a topic was created or deleted. Two live brokers therefore have to agree, each asked by
a client that knows no other broker. The only broker of a cluster is proof alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from statehold.errors import KafkaTrouble, TopicMissing

#: seconds for the answer of one broker
_ASK: Final = 3.0
#: _NOENT, "no leaders found", is what a client answers that has never known the topic
_ABSENT: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._NOENT,
    }
)

Nodes = Callable[[], Mapping[int, str]]


def may_mean_absence(error: KafkaError | None) -> bool:
    """Return whether the error may mean that the topic or partition does not exist."""
    return error is not None and error.code() in _ABSENT


def require_existing(nodes: Nodes, config: Mapping[str, Any], topic: str, partition: int = -1) -> None:
    """Ask live brokers for a topic or partition. Blocks for some seconds at most.

    `nodes` returns their addresses by number; `config` is a consumer's configuration.

    :raises TopicMissing: two live brokers, or the only one, report that it does not exist.
    """
    try:
        addresses = nodes()
    except KafkaTrouble:
        return
    needed, sure = min(2, len(addresses)), []
    for node, address in addresses.items():
        if _says_absent({**config, "bootstrap.servers": address}, topic, partition):
            sure.append(f"broker {node}")
        if len(sure) >= needed > 0:
            what = f"topic {topic} does not exist" if partition < 0 else f"{topic}[{partition}] does not exist"
            raise TopicMissing(
                f"{what}: {' and '.join(sure)} of {len(addresses)} report this. Was it deleted? Nothing was changed. "
                f"Next: restore it from a backup (`statehold snapshot restore`). A new, empty topic is rejected; see "
                f"`statehold repair --help` for that case"
            )


def _says_absent(config: Mapping[str, Any], topic: str, partition: int) -> bool:
    """Ask with a new client, because it must know only this broker."""
    asker = Consumer(dict(config))
    try:
        found = asker.list_topics(topic, _ASK).topics.get(topic)
    except KafkaException:
        return False
    finally:
        asker.close()
    if found is None:
        return False
    return may_mean_absence(found.error) or (found.error is None and 0 <= partition not in found.partitions)
