"""User commands of the control topic, pinned to a place in the input order by a commit record.

A command of the control topic has no place in the input order. The worker gives it one: after the last record of the
transaction that handles it. The commit record of that transaction repeats the whole command. A replay therefore handles
it again at the same place, even if the control topic has lost it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from statehold.api.record import MemoryMessage, Message, at
from statehold.messages.command import renamed

#: bytes that a pinned command takes in a commit record in addition to its own
_FRAME: Final = 200


class Pinned(msgspec.Struct, frozen=True, array_like=True):
    """Everything that `on_command` may read of a control-topic record, including the `statehold-command` header."""

    offset: int
    #: timestamp of the record, in milliseconds since 1970
    time: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def size(self) -> int:
        """Return about how many bytes of a commit record it takes."""
        texts = sum(len(name) + len(value or b"") for name, value in self.headers)
        return _FRAME + len(self.key or b"") + len(self.value or b"") + texts


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Placed(NamedTuple, Generic[T_co]):
    """A command or retry, and its place: behind every record below `position`, before the one at it."""

    position: int
    command: T_co


class TimeLimit(NamedTuple):
    """Placed where a transaction begins: the limit of its commit record. Time 0 ends it."""

    time: int


class PinnedMessage(MemoryMessage):
    """The message of a pinned command: the same coordinates in every replay."""

    def __init__(self, topic: str, partition: int, pinned: Pinned) -> None:
        headers = renamed(pinned.headers)
        super().__init__(topic, partition, pinned.offset, pinned.value, pinned.key, headers, pinned.time)


def pin(message: Message) -> Pinned:
    """Return the part of a control-topic record that a commit record keeps."""
    headers = tuple((name, _bytes(value)) for name, value in message.headers() or ())
    return Pinned(
        message.offset() or 0, message.timestamp()[1], _bytes(message.key()), _bytes(message.value()), headers
    )


def in_order(batches: Iterable[Sequence[Message]], placed: Sequence[Placed[T]]) -> Iterator[Sequence[Message] | T]:
    """Yield records and placed commands in the order of processing; a command between two records splits its batch."""
    left = deque(placed)
    for batch in batches:
        rest = batch
        while left and left[0].position <= at(rest[-1]):
            cut = sum(at(message) < left[0].position for message in rest)
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
