"""A listener of `KafkaGroupConsumer` for tests without a manager."""

from __future__ import annotations

from collections.abc import Sequence

from statehold.kafka.clients.consumer import KafkaGroupConsumer


class ResumingListener:
    """Assigns partitions and resumes them without a seek, so the client fetches from where it stands."""

    def __init__(self, consumer: KafkaGroupConsumer) -> None:
        self._consumer = consumer

    def on_assign(self, partitions: Sequence[int]) -> None:
        self._consumer.assign(partitions)
        self._consumer.resume(partitions)

    def on_revoke(self, partitions: Sequence[int]) -> None:
        self._consumer.unassign(partitions)

    on_lost = on_revoke
