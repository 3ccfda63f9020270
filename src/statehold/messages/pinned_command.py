"""A user's command of the control topic, pinned to its place in the order by the mark that acknowledges it.

Such a command has no place in the input's order of its own. The worker that takes it gives it one: after the last
record of the transaction that it is handled in. The mark of that transaction repeats the command as a whole, so a
replay handles it again at that place, whatever has become of the control topic since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from statehold.messages.command import renamed
from statehold.record import Message

#: as confluent_kafka has it: the timestamp is the producer's
_CREATE_TIME: Final = 1
#: what a command of a user takes in a mark beside its own bytes
_FRAME: Final = 200


class Pinned(msgspec.Struct, frozen=True, array_like=True):
    """All that `on_command` may see of a record of the control topic, `statehold-command` header included."""

    offset: int
    #: milliseconds since 1970, as Kafka has it
    time: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def size(self) -> int:
        """About how many bytes of a mark it takes."""
        texts = sum(len(name) + len(value or b"") for name, value in self.headers)
        return _FRAME + len(self.key or b"") + len(self.value or b"") + texts


T = TypeVar("T")


class Placed(NamedTuple, Generic[T]):
    """What came beside the input, such as a pinned command, and its place: after every record below `position`, before
    the one at it.
    """

    position: int
    command: T


class PinnedMessage:
    """`record.Message` of a pinned command: the same coordinates whenever it is handled."""

    def __init__(self, topic: str, partition: int, pinned: Pinned) -> None:
        self._topic, self._partition, self._pinned = topic, partition, pinned

    def topic(self) -> str | None:
        return self._topic

    def partition(self) -> int | None:
        return self._partition

    def offset(self) -> int | None:
        return self._pinned.offset

    def timestamp(self) -> tuple[int, int]:
        return _CREATE_TIME, self._pinned.time

    def key(self) -> bytes | None:
        return self._pinned.key

    def value(self) -> bytes | None:
        return self._pinned.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return renamed(self._pinned.headers)


def pin(message: Message) -> Pinned:
    """What a mark keeps of a record of the control topic."""
    headers = tuple((name, _bytes(value)) for name, value in message.headers() or ())
    return Pinned(
        message.offset() or 0, message.timestamp()[1], _bytes(message.key()), _bytes(message.value()), headers
    )


def in_order(batches: Iterable[Sequence[Message]], placed: Sequence[Placed[T]]) -> Iterator[Sequence[Message] | T]:
    """Records and what came beside them as they were handled: batches are cut where it stood between two records."""
    left = deque(placed)
    for batch in batches:
        rest = batch
        while left and left[0].position <= (rest[-1].offset() or 0):
            cut = sum((message.offset() or 0) < left[0].position for message in rest)
            if cut:
                yield rest[:cut]
                rest = rest[cut:]
            yield left.popleft().command
        yield rest
    yield from (each.command for each in left)


def _bytes(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()
