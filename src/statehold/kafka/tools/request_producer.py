"""Writes requests to given partitions of an input with an idempotent producer, and reports the offset of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from statehold.config import client
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.kafka.common.client_log import quiet
from statehold.kafka.common.error_actions import about, translate

#: seconds of one poll of the thread that takes the acknowledgements
_POLL: Final = 0.1
#: seconds to wait while the client's queue is full, again and again
_FULL_QUEUE_WAIT: Final = 0.005

#: gets the offset of a record, or the cause why it may not be written
Delivered = Callable[[int, str], None]


class RequestProducer:
    """Any thread may use it. `delivered` is called on a thread of its own."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._topic = topic
        # An idempotent client keeps the order, so a retry needs no larger pause; a request waits for no second one.
        config = {**client.full_producer(settings), "linger.ms": 0}
        self._producer = Producer(quiet(config, "requests"))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"requests-{topic}", daemon=True)
        self._thread.start()

    def send(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: Sequence[tuple[str, bytes]],
        delivered: Delivered,
        until: float,
    ) -> None:
        """Write a record. Waits while the queue is full, at most until this monotonic time.

        :raises KafkaTrouble: the queue stays full. :raises MessageRefused: the record is too large.
        """

        def on_delivery(error: Any, message: Any) -> None:
            delivered(-1 if error is not None else message.offset(), "" if error is None else str(error))

        while True:
            try:
                self._producer.produce(
                    self._topic, value, key, partition, on_delivery, headers=list(headers) if headers else None
                )
                return
            except BufferError:
                if time.monotonic() >= until or self._ending.wait(_FULL_QUEUE_WAIT):
                    raise KafkaTrouble(
                        f"{self._topic}[{partition}]: the client's queue is full, because the brokers do not answer"
                    ) from None
            except Exception as error:
                raise about(f"{self._topic}[{partition}]: nothing was sent", translate(error)) from error

    def partitions(self, seconds: float) -> int:
        """Ask a broker for the number of partitions, which the client then knows; 0: no answer in time."""
        try:
            found = self._producer.list_topics(self._topic, seconds).topics.get(self._topic)
        except KafkaException:
            return 0
        return 0 if found is None else len(found.partitions)

    def close(self, seconds: float) -> None:
        """Wait for acknowledgements, at most this long, and end the thread."""
        self._producer.flush(seconds)
        self._ending.set()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._producer.poll(_POLL)
