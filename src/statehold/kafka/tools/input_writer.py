"""Writes records to chosen partitions, in order, idempotent, and tells the offset of each: to restore an input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.common.error_actions import translate
from statehold.kafka.common.transaction_taint import quiet_logger
from statehold.record import Message

_DEADLINE = 120.0


class InputWriter:
    """Used by one thread. Blocks while the queue is full."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({**client.full_producer(settings), "logger": quiet_logger("restore")})
        self._refused = ""

    def copy(self, message: Message, delivered: Callable[[int], object]) -> None:
        """Write a record to the partition that it came from; `delivered` is told its offset, in order.

        :raises KafkaTrouble: it, or one before it, was refused.
        """

        def told(error: Any, written: Any) -> None:
            if error is not None:
                self._refused = self._refused or str(error)
            else:
                delivered(written.offset())

        while True:
            try:
                self._producer.produce(
                    self._topic,
                    message.value(),
                    message.key(),
                    message.partition() or 0,
                    on_delivery=told,
                    timestamp=max(0, message.timestamp()[1]),
                    headers=message.headers(),
                )
                self._producer.poll(0)
                break
            except BufferError:
                self._producer.poll(0.01)
            except Exception as error:
                raise translate(error) from error
        self._check()

    def flush(self) -> None:
        """:raises KafkaTrouble: a record was refused, or not all were acknowledged within two minutes."""
        left = self._producer.flush(_DEADLINE)
        self._check()
        if left > 0:
            raise KafkaTrouble(f"{self._topic}: {left} records were not acknowledged within {_DEADLINE:.0f} s")

    def _check(self) -> None:
        if self._refused:
            raise KafkaTrouble(f"{self._topic}: a record was refused: {self._refused}")
