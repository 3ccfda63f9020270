"""Writes command records to the input with an idempotent producer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaException, Producer

from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.common.client_log import quiet
from statehold.kafka.common.error_actions import translate


class CommandProducer:
    """One thread uses it."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(quiet(client.full_producer(settings), "commands"))

    def send(self, partitions: Sequence[int], header: tuple[str, bytes], value: bytes | None, wait: float) -> list[int]:
        """Write one record without a key to each partition. Return their offsets. Blocks for `wait` seconds at most.

        :raises KafkaTrouble: a record was not acknowledged; others may have been written.
        """
        found: dict[int, int] = {}
        refused: list[KafkaException] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                refused.append(KafkaException(error))
            else:
                found[message.partition()] = message.offset()

        try:
            for partition in partitions:
                self._producer.produce(
                    self._topic, value, None, partition, delivered, headers=[header], timestamp=int(time.time() * 1000)
                )
            self._producer.flush(wait)
        except KafkaException as error:
            raise translate(error) from error
        if refused:
            raise translate(refused[0]) from refused[0]
        if len(found) < len(set(partitions)):
            raise KafkaTrouble(f"{self._topic}: not acknowledged within {wait:.0f} s")
        return [found[partition] for partition in partitions]
