"""Reads past record batches that are damaged on a broker's disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statehold.errors import DamagedIncrement
from statehold.ports import Reader
from statehold.record import Message


def read_around_damage(
    reader: Reader, topic: str, partition: int, start: int, end: int
) -> Iterator[Sequence[Message] | DamagedIncrement]:
    """Yield as `Reader.read`, and the error of each damaged record batch in its place instead of raising it.

    A damaged batch may begin before `start`.
    """
    damaged = -1
    while start < end:
        try:
            for batch in reader.read(topic, partition, start, end):
                yield batch
                start = (batch[-1].offset() or 0) + 1
            return
        except DamagedIncrement as error:
            if error.position != damaged:  # else the same batch again, because its length is unknown
                damaged = error.position
                yield error
            start = max(start, error.position) + 1
