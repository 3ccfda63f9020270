"""The end of a durable call, as a commit record pins it: an answer, or the last error.

The entry is a command, `statehold.answer`. Only a worker makes one; one that comes from a topic has no effect.
Operators' requests about calls are commands of the control topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from statehold.api.record import Message
from statehold.common.decoding import UNREADABLE
from statehold.messages.command import ANSWER, BadCommand, header
from statehold.messages.pinned_command import Pinned

#: characters kept of an exception's text
TEXT: Final = 500
_HEADERS: Final = (header(ANSWER),)
_encode = msgspec.msgpack.Encoder().encode


class CallJob(NamedTuple):
    """A pending call of a committed record, as it is run: nothing of it belongs to the state."""

    id: str
    #: stored name of its `Call`
    call: str
    #: in msgpack, because each attempt gets a copy
    argument: bytes
    key: bytes | None
    #: of the record, in milliseconds since 1970
    time: int


class CallOutcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a call ended."""

    #: stored name of its `Call`
    call: str
    id: str
    attempts: int
    #: the answer in msgpack; None: it failed
    result: bytes | None
    #: class and text of the last exception
    error: str = ""

    def pin(self, offset: int, time: int, key: bytes | None) -> Pinned:
        """Return the entry of a commit record. `offset` is unique among the answers of the partition."""
        return Pinned(offset, time, key, _encode(self), _HEADERS)


_decode = msgspec.msgpack.Decoder(CallOutcome).decode


def outcome_of(message: Message) -> CallOutcome:
    """Return the outcome that an entry carries. Raises as msgspec does."""
    return _decode(message.value() or b"")


def ids_answered(pinned: Sequence[Pinned]) -> list[str]:
    """Return the calls whose answers are among the entries of a commit record."""
    return [_decode(each.value or b"").id for each in pinned if each.headers == _HEADERS]


#: commands of the control topic: make dead calls again, forget calls, end calls as failed
RETRY: Final = "calls-retry"
DISCARD: Final = "calls-discard"
FAIL: Final = "calls-fail"
CALL_REQUESTS: Final = frozenset((RETRY, DISCARD, FAIL))


class CallRequest(msgspec.Struct, frozen=True, array_like=True):
    """The value of such a command: what an operator wants of some calls of a partition, and why."""

    ids: tuple[str, ...]
    why: str = ""

    def value(self) -> bytes:
        return _encode(self)


_decode_request = msgspec.msgpack.Decoder(CallRequest).decode


def call_request_of(message: Message) -> CallRequest:
    """:raises BadCommand: the value is no such request."""
    try:
        return _decode_request(message.value() or b"")
    except UNREADABLE as error:
        raise BadCommand(f"the value is no request about calls: {error}") from error
