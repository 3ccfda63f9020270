"""Writes records to given partitions in order, to restore an input, and reports the offset of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Producer

from statehold.api.output import Headers
from statehold.api.record import Message
from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.common.client_log import quiet
from statehold.kafka.common.error_actions import translate

#: seconds for the acknowledgements of all records
_DEADLINE: Final = 120.0
#: seconds to wait while the client's queue is full: about the time to send one batch
_FULL_QUEUE_WAIT: Final = 0.01


class InputWriter:
    """One thread uses it. It blocks while the queue is full."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(quiet(client.full_producer(settings), "restore"))
        self._refused = ""

    def copy(self, message: Message, headers: Headers | None, delivered: Callable[[int], object]) -> None:
        """Write a record to the partition that it came from, with these headers. `delivered` gets the new offsets.

        They come in order.

        :raises KafkaTrouble: the brokers rejected a record.
        """

        def on_delivery(error: Any, written: Any) -> None:
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
                    on_delivery=on_delivery,
                    timestamp=max(0, message.timestamp()[1]),
                    headers=None if headers is None else list(headers),
                )
                self._producer.poll(0)
                break
            except BufferError:
                self._producer.poll(_FULL_QUEUE_WAIT)
            except Exception as error:
                raise translate(error) from error
        self._check()

    def flush(self) -> None:
        """:raises KafkaTrouble: the brokers rejected a record, or did not acknowledge all within two minutes."""
        left = self._producer.flush(_DEADLINE)
        self._check()
        if left > 0:
            raise KafkaTrouble(f"{self._topic}: {left} records were not acknowledged within {_DEADLINE:.0f} s")

    def _check(self) -> None:
        if self._refused:
            raise KafkaTrouble(f"{self._topic}: a record was rejected: {self._refused}")
