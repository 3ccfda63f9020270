"""Feed the market to Kafka: `python -m examples.clearing.feed SERVERS --records 200000 --rate 5000`.

Each trade is keyed by its account with Kafka's own partitioner (murmur2), so an account's trades lie in one
partition, in order. The producer is idempotent: a retried request neither doubles nor reorders a trade.
"""

import argparse
from collections.abc import Iterable
from threading import Event
from time import monotonic

import msgspec
from confluent_kafka import KafkaError, Message, Producer

from examples.clearing.domain import Trade
from examples.clearing.market import trades


class Feed:
    """Sends trades to the topic `trades`, at most `rate` a second (None: as fast as it goes)."""

    def __init__(self, bootstrap_servers: str, rate: float | None = None) -> None:
        self._rate = rate
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

    def send(self, stream: Iterable[Trade]) -> None:
        """Send all of `stream` and wait until the broker has acknowledged it. RuntimeError when it refuses a
        record.
        """
        encode = msgspec.json.Encoder().encode
        started = monotonic()
        for number, trade in enumerate(stream):
            if number % 500 == 0:
                self._keep_pace(started, number)
                if self._stopped.is_set():
                    break
            self._put(trade.account.encode(), encode(trade))
        self._producer.flush()
        if self._failure is not None:
            raise RuntimeError(f"trades: the broker refused a record: {self._failure}")

    def stop(self) -> None:
        """Make `send` return early; from any thread."""
        self._stopped.set()

    def _put(self, key: bytes, value: bytes) -> None:
        while True:
            try:
                self._producer.produce("trades", value, key, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.1)  # the queue is full: wait for acknowledgements, then offer it again
            else:
                return

    def _keep_pace(self, started: float, sent: int) -> None:
        self._producer.poll(0)
        if self._rate is not None:
            self._stopped.wait(max(0.0, started + sent / self._rate - monotonic()))

    def _delivered(self, error: KafkaError | None, message: Message) -> None:  # noqa: ARG002
        self._failure = self._failure or error


def main() -> None:
    """Parse the command line and feed."""
    parser = argparse.ArgumentParser(prog="python -m examples.clearing.feed", description=__doc__)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rate", type=float, default=None, help="records a second; default: flat out")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    Feed(options.bootstrap_servers, options.rate).send(trades(options.records, seed=options.seed))


if __name__ == "__main__":
    main()
