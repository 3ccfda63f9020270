"""Shared code of the four consumers: arguments, a topic partition to read, and a crash at a named point."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass

from confluent_kafka import OFFSET_STORED, Consumer, KafkaError, TopicPartition

#: Records per batch.
BATCH = 10

#: The broker is not, or not yet, the group's coordinator. The client asks for the coordinator again, but not for the
#: offset (librdkafka issue 5586): the partition must be assigned once more.
COORDINATOR_MOVES = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)


@dataclass(frozen=True)
class Scene:
    servers: str
    input: str
    output: str
    group: str
    die_at: str

    def point(self, name: str) -> None:
        """Kill this process with SIGKILL if this is the requested point."""
        if name == self.die_at:
            os._exit(9)

    def consumer(self, offset: int | None = None, **settings: object) -> Consumer:
        """Reads partition 0 from the group's offset, or from `offset`.

        It assigns the partition to itself, so that the next start need not wait until the group misses the dead one.
        """
        own = {"bootstrap.servers": self.servers, "group.id": self.group, "enable.partition.eof": True}
        consumer = Consumer({**own, "auto.offset.reset": "earliest", "isolation.level": "read_committed", **settings})
        consumer.assign([TopicPartition(self.input, 0, OFFSET_STORED if offset is None else offset)])
        return consumer


def scene() -> Scene:
    """From the command line: SERVERS INPUT OUTPUT GROUP [--die-at POINT]."""
    parser = argparse.ArgumentParser()
    for name in ("servers", "input", "output", "group"):
        parser.add_argument(name)
    parser.add_argument("--die-at", default="")
    return Scene(**vars(parser.parse_args()))


@dataclass
class Batch:
    """Some values of the input, and the offset after the last one."""

    values: list[bytes]
    end: int


def batches(consumer: Consumer) -> Iterator[Batch]:
    """Up to ten records at a time, until the end of the partition."""
    batch = Batch([], 0)
    while True:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is not None and error.code() in COORDINATOR_MOVES:
            consumer.assign(consumer.assignment())
            continue
        if error is None:
            batch.values.append(message.value() or b"")
            batch.end = (message.offset() or 0) + 1
        elif error.code() != KafkaError._PARTITION_EOF:
            raise SystemExit(str(error))
        if batch.values and (error is not None or len(batch.values) == BATCH):
            yield batch
            batch = Batch([], 0)
        if error is not None:
            return
