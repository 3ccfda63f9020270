"""The input record that a handler receives."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload

import msgspec
import xxhash

from statehold.api.declaration import WithDefaults
from statehold.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

#: covariant, because a record is immutable: a method for any Order takes a Record[Refund], too
V_co = TypeVar("V_co", covariant=True)
if TYPE_CHECKING:
    K_co = DefaultTypeVar("K_co", covariant=True, default=bytes | None)
else:  # before Python 3.13 only typing_extensions has defaults
    K_co = TypeVar("K_co", covariant=True)


#: key of a request's record, and the id that its asker chose
Request = tuple[bytes, str]


class Message(Protocol):
    """The message of a record: confluent_kafka's Message, or the test driver's."""

    def topic(self) -> str | None: ...

    def partition(self) -> int | None: ...

    def offset(self) -> int | None: ...

    def timestamp(self) -> tuple[int, int]: ...

    def key(self) -> Any: ...

    def value(self) -> Any: ...

    def headers(self) -> Any: ...


class MemoryMessage:
    """A `Message` that does not come from the Kafka client, such as a record of a backup or a pinned command."""

    __slots__ = ("_headers", "_key", "_offset", "_partition", "_timestamp", "_topic", "_value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        timestamp: int = 0,
    ) -> None:
        self._topic, self._partition, self._offset = topic, partition, offset
        self._value, self._key, self._headers, self._timestamp = value, key, headers, timestamp

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._timestamp

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> Any:
        return self._headers


class MergedMessage(msgspec.Struct, eq=False, gc=False):
    """A message of one of several inputs, with its place in the order in which the partition handles their records.

    `at` takes the part of an offset there: it grows from record to record, with gaps. It is the sum of the next offsets
    of all inputs before this record, counted with this record's own offset. So the sum of the positions after it is
    `at` + 1, whatever the order.
    """

    message: Message
    #: index of the topic among the service's inputs
    input: int
    at: int

    def topic(self) -> str | None:
        return self.message.topic()

    def partition(self) -> int | None:
        return self.message.partition()

    def offset(self) -> int | None:
        return self.message.offset()

    def timestamp(self) -> tuple[int, int]:
        return self.message.timestamp()

    def key(self) -> Any:
        return self.message.key()

    def value(self) -> Any:
        return self.message.value()

    def headers(self) -> Any:
        return self.message.headers()


def plain(messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages as the client has made them: without their place in the order of several inputs."""
    return [each.message for each in messages] if isinstance(messages[0], MergedMessage) else messages  # type: ignore[attr-defined]


def of_first_input(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages that may be commands, as the client has made them: of several inputs only the first has them.

    All records of a `Rekey` have headers, and none of them is a command.
    """
    only = input_of_all(messages)
    if only is None:
        return [each.message for each in messages if each.input == 0]  # type: ignore[attr-defined]
    return plain(messages) if only == 0 else ()


def input_of_all(messages: Sequence[Message]) -> int | None:
    """Return the index of the input of messages that follow each other in their partition's order; None: of several.

    A record of another input between two would have moved their places further apart than their offsets.
    """
    first, last = messages[0], messages[-1]
    if not (isinstance(first, MergedMessage) and isinstance(last, MergedMessage)):
        return 0
    if first.input != last.input or last.at - first.at != (last.offset() or 0) - (first.offset() or 0):
        return None
    return first.input


def at(message: Message) -> int:
    """Return the place of a record in its partition's order: its offset, unless the service has several inputs."""
    return message.at if isinstance(message, MergedMessage) else message.offset() or 0


@overload
def key_bytes(key: str | bytes | int) -> bytes: ...


@overload
def key_bytes(key: str | bytes | int | None) -> bytes | None: ...


def key_bytes(key: str | bytes | int | None) -> bytes | None:
    """Return a record's key as its bytes: text in UTF-8, a number in decimal digits."""
    if isinstance(key, str):
        return key.encode()
    return b"%d" % key if isinstance(key, int) else key


class Record(WithDefaults, msgspec.Struct, Generic[V_co, K_co], frozen=True, gc=False):
    """A record of an input topic with its decoded `value`, and its `key` if the handler declares a type for it.

    Other fields are read from the message on access, so unused fields cost nothing. `now`, `random()` and `uuid()`
    depend only on the record, so a replay gets the same values.
    """

    message: Message
    #: decoded; None only if the handler's type allows it
    value: V_co

    @property
    def topic(self) -> str:
        """The input topic."""
        return self.message.topic() or ""

    @property
    def partition(self) -> int:
        """The partition of the input topic."""
        return self.message.partition() or 0

    @property
    def offset(self) -> int:
        """The offset in that partition."""
        return self.message.offset() or 0

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970: create time or log append time, by the topic's setting."""
        return self.message.timestamp()[1]

    @property
    def key(self) -> K_co:
        """The key as the declared type; by default bytes, or None."""
        key: K_co = self.message.key()
        return key

    @property
    def raw_key(self) -> bytes | None:
        """The key as bytes, or None, whatever its declared type."""
        key: bytes | None = self.message.key()
        return key

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """The headers, in their order."""
        return self.message.headers() or ()

    @property
    def request(self) -> Request | None:
        """Key and id of the request that this record is, for `Replies.answer`; None for any other record."""
        return None

    def reply(self, value: Any) -> None:
        """Answer the request that this record is, in its transaction; do nothing for any other record.

        :raises UsageError: the handler declares no `Replies`, the value is not of their type or too large, or the
            request is answered already.
        """
        raise UsageError(
            "record.reply() needs a declaration. Next: add replies = Replies(TYPE, keep=SECONDS) to the handler"
        )

    @property
    def now(self) -> datetime:
        """The record's timestamp in UTC; use it instead of the clock, because a replay gets the same value."""
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    def random(self) -> random.Random:
        """Return a new generator seeded by topic, partition and offset. Call it once per record and keep the result."""
        return random.Random(self._seed("random"))

    def uuid(self, n: int = 0) -> uuid.UUID:
        """Return the n-th identifier of this record: version 8, unique per (topic, partition, offset, n)."""
        bits = self._seed(f"uuid/{n}") & ~(0xF << 76) & ~(0x3 << 62)
        return uuid.UUID(int=bits | (8 << 76) | (2 << 62))

    def _seed(self, purpose: str) -> int:
        return xxhash.xxh3_128_intdigest(f"{self.topic}/{self.partition}/{self.offset}/{purpose}".encode())


class KeyedRecord(Record[V_co, K_co], frozen=True, gc=False):
    """A record whose key was decoded, too."""

    key: K_co


class Numbering:
    """Numbers the requests of each record from 0, so that a replay gives the same numbers."""

    _last: tuple[tuple[str, int], int] = (("", -1), -1)

    def next(self, record: Record[Any, Any]) -> int:
        at, number = self._last
        here = record.topic, record.offset
        number = number + 1 if at == here else 0
        self._last = here, number
        return number

    def has_numbered(self, record: Record[Any, Any]) -> bool:
        """Return whether the newest number belongs to this record."""
        return self._last[0] == (record.topic, record.offset)

    def forget(self) -> None:
        """Restart the numbering after a rollback, because the records are processed again."""
        self._last = ("", -1), -1
