"""Feeds a topic with a plain idempotent producer, like an upstream system."""

from collections.abc import Iterable
from threading import Event
from time import monotonic

from confluent_kafka import KafkaError, Message, Producer


class Feed:
    """Sends (key, value) or (key, value, timestamp) to one topic, at most `rate` per second (None: without a limit).

    Uses Kafka's default partitioner (murmur2). The producer is idempotent, so that a retried request neither
    duplicates nor reorders a record.
    """

    def __init__(self, bootstrap_servers: str, topic: str, rate: float | None = None) -> None:
        self._topic, self._rate = topic, rate
        self._stopped = Event()
        self._failure: KafkaError | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "allow.auto.create.topics": False,
            }
        )

    def send(self, stream: Iterable[tuple[bytes, bytes] | tuple[bytes, bytes, int]]) -> None:
        """Send all and wait for the acknowledgements. Timestamps are milliseconds since 1970, by default now.

        Raises RuntimeError if the broker rejects a record.
        """
        started = monotonic()
        for number, record in enumerate(stream):
            if number % 200 == 0:
                self._keep_pace(started, number)
                if self._stopped.is_set():
                    break
            self._put(*record)
        self._producer.flush()
        if self._failure is not None:
            raise RuntimeError(f"{self._topic}: send a record: {self._failure}")

    def stop(self) -> None:
        """Make `send` return early. Any thread."""
        self._stopped.set()

    def _put(self, key: bytes, value: bytes, timestamp: int = 0) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, timestamp=timestamp, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.1)  # the queue is full: wait for acknowledgements, then try again
            else:
                return

    def _keep_pace(self, started: float, sent: int) -> None:
        self._producer.poll(0)
        if self._rate is not None:
            self._stopped.wait(max(0.0, started + sent / self._rate - monotonic()))

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._failure = self._failure or error
