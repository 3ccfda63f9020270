"""One input record, as the handler sees it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import xxhash

V = TypeVar("V")


class Message(Protocol):
    """What a record is made of: confluent_kafka's Message, or the test driver's."""

    def topic(self) -> str | None: ...

    def partition(self) -> int | None: ...

    def offset(self) -> int | None: ...

    def timestamp(self) -> tuple[int, int]: ...

    def key(self) -> Any: ...

    def value(self) -> Any: ...

    def headers(self) -> Any: ...


class Record(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """A record of the input topic with its decoded `value`.

    Everything but the value is read from the message when asked for: a field that is not used costs nothing. `now`,
    `random()` and `uuid()` depend on the record's coordinates alone and are the same in a replay.
    """

    message: Message
    value: V

    @property
    def topic(self) -> str:
        return self.message.topic() or ""

    @property
    def partition(self) -> int:
        return self.message.partition() or 0

    @property
    def offset(self) -> int:
        return self.message.offset() or 0

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970, as Kafka has it: create time or log append time, by the topic's setting."""
        return self.message.timestamp()[1]

    @property
    def key(self) -> bytes | None:
        key: bytes | None = self.message.key()
        return key

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        return self.message.headers() or ()

    @property
    def now(self) -> datetime:
        """The record's own time, in UTC: what a handler uses instead of the clock."""
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    def random(self) -> random.Random:
        """A new generator seeded by the coordinates; ask once per record and keep it while handling it."""
        return random.Random(self._seed("random"))

    def uuid(self, n: int = 0) -> uuid.UUID:
        """The n-th identifier of this record: version 8, unique to (topic, partition, offset, n)."""
        bits = self._seed(f"uuid/{n}") & ~(0xF << 76) & ~(0x3 << 62)
        return uuid.UUID(int=bits | (8 << 76) | (2 << 62))

    def _seed(self, purpose: str) -> int:
        return xxhash.xxh3_128_intdigest(f"{self.topic}/{self.partition}/{self.offset}/{purpose}".encode())


class Numbering:
    """Numbers what records ask for, each record's from 0: the same when it is handled again."""

    def __init__(self) -> None:
        self._last: tuple[tuple[str, int], int] = (("", -1), -1)

    def next(self, record: Record[Any]) -> int:
        at, number = self._last
        here = record.topic, record.offset
        number = number + 1 if at == here else 0
        self._last = here, number
        return number

    def forget(self) -> None:
        """The open transaction is undone: its records come again."""
        self._last = ("", -1), -1
