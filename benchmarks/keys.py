"""The load of `restore`: 1,000,000 keys with values of about 100 bytes, written over and over, and looked at."""

from __future__ import annotations

import json
import random

import msgspec
from confluent_kafka import Producer

from benchmarks.kafka import LONG_WAIT, records_of


class Put(msgspec.Struct, frozen=True, gc=False):
    """One input record, keyed by `key`. `look` asks for what is stored instead of storing."""

    key: str
    version: int
    text: str
    look: bool = False


class Seen(msgspec.Struct, frozen=True, gc=False):
    """The answer to a look: the stored version; -1 for a key that is not there."""

    key: str
    version: int


def key_of(index: int) -> str:
    """Return the name of key `index`."""
    return f"key-{index:08d}"


def partition_of(key: str, partitions: int) -> int:
    """Return the partition to which a `Writer` sends a key: by its number, not by the hash of a producer."""
    return int(key[4:]) % partitions


class Writer:
    """Produces puts and looks, and remembers the version that each key must have.

    `varied` texts repeat so late that a delta of them cannot be compressed to nothing.
    """

    def __init__(self, bootstrap: str, topic: str, keys: int, partitions: int = 1, *, varied: bool = False) -> None:
        self._topic, self._keys, self._partitions, self._next = topic, keys, partitions, 0
        self._numbers = random.Random(3)
        self._encode = msgspec.json.Encoder().encode
        self._texts = ["".join(self._numbers.choices("abcdefgh", k=52)) for _ in range(100_003 if varied else 1000)]
        settings = {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
            "log_level": 2,
        }
        self._producer = Producer(settings)

    def pass_over(self) -> None:
        """Write every key once, in an order that is not that of the keys."""
        self.put(self._keys)

    def put(self, count: int) -> None:
        """Write the next `count` keys."""
        for _ in range(count):
            version, at = divmod(self._next, self._keys)
            key = key_of(at * 7919 % self._keys)
            self._send(Put(key, version, self._texts[self._next % len(self._texts)]))
            self._next += 1
        assert self._producer.flush(LONG_WAIT) == 0

    def look(self, count: int) -> dict[str, int]:
        """Ask for `count` random keys; return the versions that must be answered."""
        wanted = {}
        for at in self._numbers.sample(range(self._keys), count):
            done = self._next // self._keys - 1
            wanted[key_of(at * 7919 % self._keys)] = done + 1 if at < self._next % self._keys else done
        for key in wanted:
            self._send(Put(key, -1, "", look=True))
        assert self._producer.flush(LONG_WAIT) == 0
        return wanted

    def steady(self, look: int, puts: list[int]) -> None:
        """Look at one key by its number and write others again, without waiting for the broker."""
        for index in puts:
            self._send(Put(key_of(index), 1, self._texts[index % len(self._texts)]))
        self._send(Put(key_of(look), -1, "", look=True))
        self._producer.poll(0)

    def _send(self, one: Put) -> None:
        while True:
            try:
                to = partition_of(one.key, self._partitions)
                self._producer.produce(self._topic, self._encode(one), one.key.encode(), to)
                return
            except BufferError:
                self._producer.poll(0.1)


def answers(bootstrap: str, topic: str) -> list[tuple[str, int, int]]:
    """Return (key, version, append time in ms) of every answer that is committed."""
    found = []
    for message in records_of(bootstrap, topic):
        one = json.loads(message.value() or b"{}")
        found.append((str(one["key"]), int(one["version"]), message.timestamp()[1]))
    return found
