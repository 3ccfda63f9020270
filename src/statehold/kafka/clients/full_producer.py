"""The second producer of a partition, which writes full snapshots to their topic."""

from __future__ import annotations

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


class KafkaFullSink(FullSink):
    """`ports.FullSink` on an idempotent producer (rule S3)."""

    def __init__(self, settings: Settings, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._producer = Producer(quiet(client.full_producer(settings), "full"))
        self._offsets: list[int] = []
        self._sent = 0
        self._refused: str | None = None

    def send(self, payload: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, payload, partition=self._partition, on_delivery=self._delivered)
                self._sent += 1
                return
            except BufferError:
                self._producer.poll(_FULL_QUEUE_WAIT)
            except Exception as error:
                raise translate(error) from error

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

    def close(self) -> None:
        self._producer.purge()
        del self._producer

    def _delivered(self, error: Any, message: Any) -> None:
        # Acknowledgements arrive in the order of sending, because the producer is idempotent and has one partition.
        if error is not None:
            self._refused = self._refused or str(error)
        else:
            self._offsets.append(message.offset())
