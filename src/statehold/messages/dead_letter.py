"""The format of `<service>.<input>.dead`: dead letters, and the commands and records that resolve them.

A dead letter is the record as it was received, with headers of statehold behind its own. A resolution on the same topic
reports what became of it. It has no value and the header of a command, so a statehold service that reads the topic gets
it in on_command and never in on_record.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from statehold.api.record import MemoryMessage, MergedMessage, Message
from statehold.common.decoding import UNREADABLE
from statehold.errors import RecordError, class_and_text, text_of
from statehold.messages.command import BadCommand, Command, command_of
from statehold.messages.command import header as command_header
from statehold.messages.sent import Sent

#: prefix of every header that statehold adds to the record's own
PREFIX: Final = "statehold-dead-"
#: commands of the control topic that redrive or discard a dead letter
REPLAY: Final = "dlq-replay"
DISCARD: Final = "dlq-discard"
REQUESTS: Final = frozenset((REPLAY, DISCARD))
#: command of the control topic that dead-letters the record at which a partition fails. Its name is stored, therefore
#: it stays although the command line calls it `dlq add`
ADD: Final = "dlq-bury"
#: resolutions on the dead-letter topic
REPLAYED: Final = "dlq-replayed"
DISCARDED: Final = "dlq-discarded"
FAILED_AGAIN: Final = "dlq-failed-again"
#: stored names of a partition's system tables: blocked keys, and resolved dead letters; a user's table has no dot
BLOCKED_KEYS: Final = "statehold.parked"
RESOLVED: Final = "statehold.settled"
#: characters kept of an exception's text
TEXT: Final = 500

_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
_encode = msgspec.msgpack.Encoder().encode

Why = Literal["raised", "followed"]


class BlockedKey(msgspec.Struct, frozen=True, array_like=True):
    """A key whose records are dead-lettered until its first failure is resolved.

    Its records are named by their place in the partition's order, the offset if the service has one input.
    """

    #: the record that failed, and the newest dead letter behind it
    first: int
    last: int
    #: the newest one that was redriven or discarded; -1: none
    settled: int = -1
    #: number of unresolved dead letters
    waiting: int = 1
    #: class of the exception
    error: str = ""


class Failure(msgspec.Struct, frozen=True):
    """Why a record was dead-lettered or goes to a retry topic."""

    #: class and text of the exception
    error: str
    text: str
    #: number of handler calls for the record
    attempts: int
    ordered: bool = False
    #: an operator's command that decided so: its id, its issuer and the reason; "": a policy did
    id: str = ""
    who: str = ""
    reason: str = ""


class DeadLetterRequest(msgspec.Struct, frozen=True, array_like=True):
    """The value of a redrive or discard command: the whole dead letter, and the one of its key before it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    ordered: bool
    previous: int
    why: str = ""
    #: of a service with several inputs: the record's input, and its place in the partition's order
    topic: str = ""
    merged: int = -1

    @property
    def place(self) -> int:
        """The record's place in the partition's order."""
        return self.offset if self.merged < 0 else self.merged


class AddRequest(msgspec.Struct, frozen=True, array_like=True):
    """The value of the command that dead-letters the record at which a partition fails."""

    #: of the record
    offset: int
    #: next offset of the partition when the command was sent; the command ends once the partition has passed it
    position: int
    #: later records of the key may be handled before this one
    overtake: bool = False
    why: str = ""
    #: of a service with several inputs: the record's input
    topic: str = ""
    #: the service was stopped: the worker dead-letters the record before the handler gets it
    unseen: bool = False


_decode_request: Final = msgspec.msgpack.Decoder(DeadLetterRequest).decode
_decode_add_request: Final = msgspec.msgpack.Decoder(AddRequest).decode


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as it was read, with the coordinates of the original record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    #: headers of the original record
    headers: tuple[tuple[str, bytes | None], ...]
    why: str
    error: str
    text: str
    attempts: int
    ordered: bool
    #: place of the key's dead letter before it; -1: the first one since the key was blocked
    previous: int
    #: offset of the dead letter on its own topic
    at: int
    #: of a service with several inputs: the record's place in the partition's order
    merged: int = -1
    #: see `Failure`
    id: str = ""
    who: str = ""
    reason: str = ""

    @property
    def place(self) -> int:
        """The record's place in the partition's order: the offset, unless the service has several inputs."""
        return self.offset if self.merged < 0 else self.merged

    @property
    def name(self) -> str:
        """What commands call it, such as 3@1207; with several inputs trades:3@1207."""
        name = f"{self.partition}@{self.offset}"
        return name if self.merged < 0 else f"{self.topic}:{name}"

    def request(self, what: str, why: str) -> bytes:
        """Return the value of the command that redrives or discards it; a discard does not repeat the record."""
        value, headers = (self.value, self.headers) if what == REPLAY else (None, ())
        request = DeadLetterRequest(
            self.offset, self.timestamp, self.key, value, headers, self.ordered, self.previous, why
        )
        if self.merged >= 0:
            request = msgspec.structs.replace(request, topic=self.topic, merged=self.merged)
        return _encode(request)


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a dead letter: redriven, discarded, or failed again."""

    what: str
    #: offset of the original record
    offset: int
    id: str
    who: str
    why: str
    #: offset of the command on the control topic
    command: int
    #: class and text of the exception, if it failed again
    error: str = ""
    text: str = ""
    at: int
    #: as for `DeadLetter`
    merged: int = -1

    @property
    def place(self) -> int:
        return self.offset if self.merged < 0 else self.merged


def is_of(inputs: Sequence[str], request: DeadLetterRequest) -> bool:
    """Return whether a service with these inputs can have written the dead letter."""
    return request.merged < 0 if len(inputs) == 1 else request.merged >= 0 and request.topic in inputs


def redriven(inputs: Sequence[str], partition: int, request: DeadLetterRequest) -> Message:
    """Return the message of a redriven dead letter: the original record. `is_of` has accepted the request."""
    topic, headers = request.topic or inputs[0], list(request.headers)
    was = MemoryMessage(topic, partition, request.offset, request.value, request.key, headers, request.timestamp)
    return was if request.merged < 0 else MergedMessage(was, inputs.index(topic), request.merged)


def dead_letter_of(topic: str, message: Message, why: Why, failure: Failure, previous: int) -> Sent:
    """Return the dead letter of a record: the record as it was received, its coordinates and the cause."""
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
    if isinstance(message, MergedMessage):
        own += own_headers(PREFIX, place=message.at)
    if failure.id:
        own += own_headers(PREFIX, id=failure.id, who=failure.who, reason=failure.reason[:TEXT])
    return as_received(topic, message, own)


def trace(
    topic: str, partition: int, what: str, command: Command, request: DeadLetterRequest, failure: Failure | None
) -> Sent:
    """Return the resolution of a dead letter, for the topic of the dead letters."""
    facts: dict[str, object] = {"offset": request.offset, "why": request.why, "command": command.offset}
    if request.merged >= 0:
        facts |= {"input": request.topic, "place": request.merged}
    if failure is not None:
        facts |= {"error": failure.error, "text": failure.text[:TEXT]}
    headers = [command_header(what, command.id, command.issuer), *own_headers(PREFIX, **facts)]
    return topic, None, request.key, partition, None, None, 0, headers


def read(message: Message) -> DeadLetter | Resolution | None:
    """Return what a record of the dead-letter topic is; None if statehold did not write it."""
    try:
        return _read(message)
    except (BadCommand, KeyError, ValueError):
        return None  # because any writer of the topic can imitate a header


def request_of(message: Message) -> DeadLetterRequest:
    """Return the dead letter in a replay or discard command.

    :raises BadCommand: `DeadLetter.request` did not write it.
    """
    try:
        return _decode_request(message.value() or b"")
    except UNREADABLE as error:
        raise BadCommand(f"it names no dead letter: {error}") from error


def add_request_of(message: Message) -> AddRequest:
    """Return the request in a `dlq-bury` command.

    :raises BadCommand: its value is no such request.
    """
    try:
        return _decode_add_request(message.value() or b"")
    except UNREADABLE as error:
        raise BadCommand(f"it names no record: {error}") from error


def number(text: str) -> int:
    """Return a number of `own_headers`.

    :raises ValueError: it is no number, or too long for an offset or a time.
    """
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no number")
    return int(text)


def _read(message: Message) -> DeadLetter | Resolution | None:
    headers = message.headers() or ()
    facts = facts_of(PREFIX, headers)
    if "offset" not in facts:
        return None
    if "topic" not in facts:
        command = command_of(message)
        if command is None:
            return None
        return Resolution(
            what=command.name,
            offset=number(facts["offset"]),
            id=command.id,
            who=command.issuer,
            why=facts.get("why", ""),
            command=number(facts.get("command", "-1")),
            error=facts.get("error", ""),
            text=facts.get("text", ""),
            at=message.offset() or 0,
            merged=number(facts.get("place", "-1")),
        )
    return DeadLetter(
        topic=facts["topic"],
        partition=number(facts["partition"]),
        offset=number(facts["offset"]),
        timestamp=number(facts["timestamp"]),
        key=message.key(),
        value=message.value(),
        headers=received(PREFIX, headers),
        why=facts["why"],
        error=facts["error"],
        text=facts["text"],
        attempts=number(facts["attempts"]),
        ordered=facts["ordered"] == "1",
        previous=number(facts["previous"]),
        at=message.offset() or 0,
        merged=number(facts.get("place", "-1")),
        id=facts.get("id", ""),
        who=facts.get("who", ""),
        reason=facts.get("reason", ""),
    )


def waiting(records: Iterable[DeadLetter | Resolution | None]) -> list[DeadLetter]:
    """Return the dead letters of a partition that were neither redriven nor discarded, in their order."""
    found: dict[int, DeadLetter] = {}
    for each in records:
        if isinstance(each, DeadLetter):
            found[each.place] = each
        elif each is not None and each.what in (REPLAYED, DISCARDED):
            found.pop(each.place, None)
    return list(found.values())


def received(prefix: str, headers: Sequence[tuple[str, Any]]) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers of the original record: those before the last group that statehold added."""
    ours = [i for i, (name, _) in enumerate(headers) if name == f"{prefix}topic"]
    return tuple(headers[: ours[-1]] if ours else headers)


def failure_of(error: BaseException, attempts: int, *, ordered: bool = False) -> Failure:
    """Return the failure of a handler call. A `RecordError` wraps the cause, and the failure names the cause."""
    cause = error.__cause__ if isinstance(error, RecordError) else None
    text = text_of(error) if cause is None else class_and_text(cause)
    text = text.encode(errors="replace").decode()  # such as the name of a file, which need not be UTF-8
    return Failure(type(error).__name__, text, attempts, ordered)


def as_received(topic: str, message: Message, own: list[tuple[str, bytes]]) -> Sent:
    """Return the record for a topic of statehold: its own bytes and partition, and these headers behind its own."""
    headers: Any = [*(message.headers() or ()), *own]
    return topic, message.value(), message.key(), message.partition() or 0, None, None, 0, headers


def own_headers(prefix: str, **facts: object) -> list[tuple[str, bytes]]:
    """Return these facts about a record as headers."""
    return [(f"{prefix}{name}", str(value).encode()) for name, value in facts.items()]


def facts_of(prefix: str, headers: Sequence[tuple[str, Any]]) -> dict[str, str]:
    """Return the facts that `own_headers` wrote, by name."""
    return {
        name.removeprefix(prefix): (value or b"").decode(errors="replace")
        for name, value in headers
        if name.startswith(prefix)
    }
