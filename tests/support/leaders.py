"""Find the coordinator of a group or a transactional id: the leader of the partition that Kafka hashes it to."""

from __future__ import annotations

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"


def leader_of(admin: AdminClient, topic: str, key: str) -> int:
    """Return the leader's broker number; 0 without a leader or an answer.

    The partition is the absolute value of Java's String.hashCode modulo the number of partitions, as in Kafka's
    GroupCoordinator.partitionFor and TransactionStateManager.partitionFor.
    """
    number = 0
    for character in key:
        number = (31 * number + ord(character)) & 0xFFFFFFFF
    signed = number - (1 << 32) if number >= 1 << 31 else number
    positive = 0 if signed == -(1 << 31) else abs(signed)
    try:
        partitions = admin.list_topics(topic, timeout=60).topics[topic].partitions
    except KafkaException:
        return 0
    return max(0, partitions[positive % len(partitions)].leader) if partitions else 0
