"""Reads past record batches that are damaged on a broker's disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from statehold.api.record import Message
from statehold.errors import DamagedIncrement
from statehold.ports import Reader


def read_around_damage(
    reader: Reader, topic: str, partition: int, start: int, end: int
) -> Iterator[Sequence[Message] | DamagedIncrement]:
    """Yield as `Reader.read`, and the error of each damaged record batch in its place instead of raising it.

    A damaged batch may begin before `start`.
    """
    while start < end:
        try:
            for batch in reader.read(topic, partition, start, end):
                yield batch
                start = (batch[-1].offset() or 0) + 1
            return
        except DamagedIncrement as error:
            yield error
            start = _behind(reader, topic, partition, error.position, max(start, error.position), end)


def _behind(reader: Reader, topic: str, partition: int, damaged: int, inside: int, end: int) -> int:
    """Return the first offset behind the damaged batch that begins at `damaged`, or `end`; `inside` is an offset in it.

    The length of the batch is unknown, but a read that begins in it reports it again. Steps that double, then
    halves, find its end with few reads.
    """
    step, outside = 1, inside + 1
    while outside < end and _is_in(reader, topic, partition, damaged, outside):
        inside, outside, step = outside, outside + step, 2 * step
    outside = min(outside, end)
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if _is_in(reader, topic, partition, damaged, middle):
            inside = middle
        else:
            outside = middle
    return outside


def _is_in(reader: Reader, topic: str, partition: int, damaged: int, offset: int) -> bool:
    """Return whether this offset is in the damaged batch."""
    try:
        for _ in reader.read(topic, partition, offset, offset + 1):
            return False
    except DamagedIncrement as error:
        return error.position == damaged
    return False
