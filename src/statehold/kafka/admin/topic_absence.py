"""Whether a topic or a partition is certainly not there: slowness and unreachability are waited for, absence is not.

One broker may not know yet of a topic that was just created, or not yet of one that was deleted. So two live brokers
are asked, each by a client that knows no other; the only broker of a cluster is believed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from statehold.errors import KafkaTrouble, TopicMissing

#: seconds that one broker may take
_ASK: Final = 3.0
_ABSENT: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})

Nodes = Callable[[], Mapping[int, str]]


def tells_of_absence(error: KafkaError | None) -> bool:
    """The answer may mean that there is no such topic or partition."""
    return error is not None and error.code() in _ABSENT


def require_there(nodes: Nodes, config: Mapping[str, Any], topic: str, partition: int = -1) -> None:
    """`nodes` tells the live brokers' addresses; `config` is that of a consumer. Blocks for some seconds at most.

    :raises TopicMissing: two live brokers, or the only one, say that it is not there.
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
                f"{what}: {' and '.join(sure)} of {len(addresses)} say so. Was it deleted? Nothing was changed. Bring "
                f"it back from a backup (`statehold snapshot restore`); made anew and empty it is refused, and "
                f"`statehold repair --help` tells what can be done then"
            )


def _says_absent(config: Mapping[str, Any], topic: str, partition: int) -> bool:
    """Asked of a client that was made for this question, so that it knows this one broker."""
    asker = Consumer(dict(config))
    try:
        found = asker.list_topics(topic, _ASK).topics.get(topic)
    except KafkaException:
        return False
    finally:
        asker.close()
    if found is None:
        return False
    return tells_of_absence(found.error) or (found.error is None and 0 <= partition not in found.partitions)
