"""Dead letters: what stands on `<service>.<input>.dead`, and what a partition remembers of the keys that wait there.

A letter is the record as it was received, with headers of ours behind its own. What becomes of it is told on the same
topic by a trace: a record without a value, with the header of a command, so that a service that reads the letters gets
it in on_command and never in on_record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from statehold.errors import RecordError
from statehold.messages.command import Command, command_of
from statehold.messages.command import header as command_header
from statehold.output import Sent
from statehold.record import Message

#: begins every header that a letter has beside those of the record
PREFIX: Final = "statehold-dead-"
#: commands of the control topic
REPLAY: Final = "dlq-replay"
DISCARD: Final = "dlq-discard"
REQUESTS: Final = frozenset((REPLAY, DISCARD))
#: traces on the topic of the letters
REPLAYED: Final = "dlq-replayed"
DISCARDED: Final = "dlq-discarded"
FAILED_AGAIN: Final = "dlq-failed-again"
#: the tables that a partition keeps for this; a user's table has no dot in its name
PARKED: Final = "statehold.parked"
SETTLED: Final = "statehold.settled"
#: characters of an exception's text
TEXT: Final = 500

_encode = msgspec.msgpack.Encoder().encode

Why = Literal["raised", "followed"]


class Parked(msgspec.Struct, frozen=True, array_like=True):
    """A key whose records wait as letters: offsets of the input, all of this partition."""

    #: the one that failed, and the newest that follows it
    first: int
    last: int
    #: the newest that was replayed or discarded; -1: none
    settled: int = -1
    #: letters
    waiting: int = 1
    #: class of the exception
    error: str = ""


class Failure(msgspec.Struct, frozen=True):
    """Why a record became a letter, or is tried later."""

    #: class and text of the exception
    error: str
    text: str
    #: how often the handler was given the record
    attempts: int
    ordered: bool = False


class Request(msgspec.Struct, frozen=True, array_like=True):
    """The value of a replay or discard command: the letter as a whole, and its place among those of its key."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    ordered: bool
    previous: int
    why: str = ""


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A letter as it was read, with the coordinates of the record that it was."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    #: the record's own
    headers: tuple[tuple[str, bytes | None], ...]
    why: str
    error: str
    text: str
    attempts: int
    ordered: bool
    #: offset of the letter of its key before it; -1: it is the first since the key was parked
    previous: int
    #: where the letter itself stands
    at: int

    def request(self, what: str, why: str) -> bytes:
        """The value of the command that has it replayed or discarded; one that is discarded need not be repeated."""
        value, headers = (self.value, self.headers) if what == REPLAY else (None, ())
        return _encode(Request(self.offset, self.timestamp, self.key, value, headers, self.ordered, self.previous, why))


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a letter."""

    what: str
    #: of the record that the letter was
    offset: int
    id: str
    who: str
    why: str
    #: offset of the command on the control topic
    command: int
    #: of an exception that it raised again
    error: str = ""
    text: str = ""
    at: int


class LetterMessage:
    """`record.Message` of a letter that is handled again: the record that it was."""

    def __init__(self, topic: str, partition: int, request: Request) -> None:
        self._topic, self._partition, self._request = topic, partition, request

    def topic(self) -> str | None:
        return self._topic

    def partition(self) -> int | None:
        return self._partition

    def offset(self) -> int | None:
        return self._request.offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._request.timestamp

    def key(self) -> bytes | None:
        return self._request.key

    def value(self) -> bytes | None:
        return self._request.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return list(self._request.headers)


def letter(topic: str, message: Message, why: Why, failure: Failure, previous: int) -> Sent:
    """The record as it was received, with where it came from and why it is here."""
    own = own_headers(
        PREFIX,
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp=message.timestamp()[1],
        why=why,
        error=failure.error,
        text=failure.text[:TEXT],
        attempts=failure.attempts,
        ordered=int(failure.ordered),
        previous=previous,
    )
    return as_received(topic, message, own)


def trace(topic: str, partition: int, what: str, command: Command, request: Request, failure: Failure | None) -> Sent:
    """What became of a letter, beside the letters."""
    told: dict[str, object] = {"offset": request.offset, "why": request.why, "command": command.offset}
    if failure is not None:
        told |= {"error": failure.error, "text": failure.text[:TEXT]}
    headers = [command_header(what, command.id, command.issuer), *own_headers(PREFIX, **told)]
    return topic, None, request.key, partition, None, None, 0, headers


def read(message: Message) -> Letter | Trace | None:
    """What a record of the letters' topic is; None for one that is not ours."""
    headers = message.headers() or ()
    told = told_headers(PREFIX, headers)
    if "offset" not in told:
        return None
    if "topic" not in told:
        command = command_of(message)
        if command is None:
            return None
        return Trace(
            what=command.name,
            offset=int(told["offset"]),
            id=command.id,
            who=command.issuer,
            why=told.get("why", ""),
            command=int(told.get("command", -1)),
            error=told.get("error", ""),
            text=told.get("text", ""),
            at=message.offset() or 0,
        )
    return Letter(
        topic=told["topic"],
        partition=int(told["partition"]),
        offset=int(told["offset"]),
        timestamp=int(told["timestamp"]),
        key=message.key(),
        value=message.value(),
        headers=received(PREFIX, headers),
        why=told["why"],
        error=told["error"],
        text=told["text"],
        attempts=int(told["attempts"]),
        ordered=told["ordered"] == "1",
        previous=int(told["previous"]),
        at=message.offset() or 0,
    )


def waiting(records: Iterable[Letter | Trace | None]) -> list[Letter]:
    """The letters of a partition that were neither replayed nor discarded, in their order."""
    found: dict[int, Letter] = {}
    for each in records:
        if isinstance(each, Letter):
            found[each.offset] = each
        elif each is not None and each.what in (REPLAYED, DISCARDED):
            found.pop(each.offset, None)
    return list(found.values())


def received(prefix: str, headers: Sequence[tuple[str, Any]]) -> tuple[tuple[str, bytes | None], ...]:
    """The headers that the record had when it came: what stands before the last ones of ours."""
    ours = [i for i, (name, _) in enumerate(headers) if name == f"{prefix}topic"]
    return tuple(headers[: ours[-1]] if ours else headers)


def failure_of(error: BaseException, attempts: int, *, ordered: bool = False) -> Failure:
    """An error of ours says what to do about a record that waits; a letter has what caused it."""
    cause = error.__cause__ if isinstance(error, RecordError) else None
    text = str(error) if cause is None else f"{type(cause).__name__}: {cause}"
    return Failure(type(error).__name__, text, attempts, ordered)


def as_received(topic: str, message: Message, own: list[tuple[str, bytes]]) -> Sent:
    """The record on a topic of ours: its own bytes, on its partition, headers of ours behind its own."""
    headers: Any = [*(message.headers() or ()), *own]
    return topic, message.value(), message.key(), message.partition() or 0, None, None, 0, headers


def own_headers(prefix: str, **told: object) -> list[tuple[str, bytes]]:
    """What we tell of a record, as headers of it."""
    return [(f"{prefix}{name}", str(value).encode()) for name, value in told.items()]


def told_headers(prefix: str, headers: Sequence[tuple[str, Any]]) -> dict[str, str]:
    """What `own_headers` was given."""
    return {
        name.removeprefix(prefix): (value or b"").decode(errors="replace")
        for name, value in headers
        if name.startswith(prefix)
    }
