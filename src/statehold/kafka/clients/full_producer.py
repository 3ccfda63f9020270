"""Producers of the snapshot topic: of the full snapshots of one partition, and of the manifests of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.common.client_log import quiet
from statehold.kafka.common.error_actions import translate
from statehold.ports import FullSink

#: seconds to wait while the client's queue is full: about the time to send one batch
_FULL_QUEUE_WAIT: Final = 0.01
#: seconds without an acknowledgement after which a manifest counts as not written
_PATIENCE: Final = 60.0
_NEXT: Final = "No record was deleted, and no state was replaced. Next: run the command again"


class _SnapshotProducer:
    """An idempotent producer of the snapshot topic (rule S3)."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(quiet(client.full_producer(settings), "full"))

    def _produce(self, partition: int, payload: bytes, delivered: Callable[[Any, Any], None]) -> None:
        while True:
            try:
                self._producer.produce(self._topic, payload, partition=partition, on_delivery=delivered)
                return
            except BufferError:
                self._producer.poll(_FULL_QUEUE_WAIT)
            except Exception as error:
                raise translate(error) from error

    def close(self) -> None:
        self._producer.purge()
        del self._producer


class KafkaFullSink(_SnapshotProducer, FullSink):
    """`ports.FullSink` on one partition of the topic."""

    def __init__(self, settings: Settings, topic: str, partition: int) -> None:
        super().__init__(settings, topic)
        self._partition = partition
        self._offsets: list[int] = []
        self._sent = 0
        self._refused: str | None = None

    def send(self, payload: bytes) -> None:
        self._produce(self._partition, payload, self._delivered)
        self._sent += 1

    def acknowledged(self, wait: float = 0.0) -> list[int]:
        try:
            self._producer.poll(0)
            if wait > 0 and len(self._offsets) < self._sent:
                self._producer.flush(wait)
        except KafkaException as error:
            raise translate(error) from error
        if self._refused is not None:
            raise KafkaTrouble(f"a chunk was not written: {self._refused}")
        return self._offsets

    def _delivered(self, error: Any, message: Any) -> None:
        # Acknowledgements arrive in the order of sending, because the producer is idempotent and has one partition.
        if error is not None:
            self._refused = self._refused or str(error)
        else:
            self._offsets.append(message.offset())


class ManifestProducer(_SnapshotProducer):
    """Writes the manifests of many partitions.

    Make it before other work that takes a while, because it connects in about half a second.
    """

    def write(self, manifests: Mapping[int, bytes]) -> dict[int, int]:
        """Write a manifest for each of these partitions; return its offset once Kafka has acknowledged all.

        :raises KafkaTrouble: one was rejected, or none was acknowledged for a minute.
        """
        offsets: dict[int, int] = {}
        refused: list[str] = []

        def delivered(partition: int, error: Any, message: Any) -> None:
            if error is not None:
                refused.append(f"of partition {partition}: {error}")
            else:
                offsets[partition] = message.offset()

        for partition, payload in manifests.items():
            self._produce(partition, payload, partial(delivered, partition))
        known = -1
        try:
            while self._producer.flush(_PATIENCE) and len(offsets) > known:
                known = len(offsets)
        except KafkaException as error:
            raise translate(error) from error
        if refused:
            raise KafkaTrouble(f"manifests were not written: {'; '.join(refused)}. {_NEXT}")
        if len(offsets) < len(manifests):
            acknowledged = f"{len(offsets)} of {len(manifests)} manifests were acknowledged"
            raise KafkaTrouble(f"{acknowledged}, none in the last {_PATIENCE:.0f} s. {_NEXT}")
        return offsets
