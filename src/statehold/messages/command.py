"""The format of commands: input records addressed to the service itself, processed in input order."""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from statehold.api.record import Message
from statehold.common.decoding import UNREADABLE

_PREFIX: Final = "statehold"
#: an input record with this header is a command: on_command gets it, never on_record
COMMAND_HEADER: Final = "statehold-command"
#: requests a full snapshot
TAKE: Final = "take"
#: switches the partition to the newest format, beginning with the commit record of this command
FINISH_UPGRADE: Final = "finish-upgrade"
#: pause and resume a partition; by the control topic only, because a paused partition reads no input
PAUSE: Final = "pause"
GO_ON: Final = "resume"
SWITCHES: Final = frozenset((PAUSE, GO_ON))
#: moves the clock of an idle partition, as a pinned command in a commit record; one sent by hand has no effect
TICK: Final = "statehold.tick"
#: the answer of a durable call, pinned like a tick; one sent by hand has no effect
ANSWER: Final = "statehold.answer"
#: a part of what became due before a record that is not handled yet, pinned like a tick; one sent by hand has no effect
SLICE: Final = "statehold.slice"
#: entries that only a worker makes
WORKERS: Final = frozenset((TICK, ANSWER, SLICE))
#: commands that the handler does not see
OWN: Final = frozenset((TAKE, FINISH_UPGRADE, *SWITCHES))
#: longest name, id and issuer in characters, because a commit record repeats its commands and must fit a message
_LONGEST: Final = 200
#: bytes of a header with its longest fields, all of them escaped, and room for what a later release may add
_LARGEST: Final = 16_384
#: how deep a header may be nested, at most: more depends on the caller's own depth, which is another one in a replay
_NESTED: Final = 16
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Command(msgspec.Struct, frozen=True, array_like=True):
    """The content of a command header, and the offset of its record."""

    name: str
    id: str = ""
    issuer: str = ""
    offset: int = -1


class BadCommand(ValueError):
    """The header is not a command."""


class _Header(msgspec.Struct, omit_defaults=True, frozen=True):
    name: str
    id: str = ""
    issuer: str = ""


_decode_header = msgspec.json.Decoder(_Header).decode


def header(name: str, id: str = "", issuer: str = "") -> tuple[str, bytes]:
    """Return the header of a command record, in JSON. Leave the record's key and value null."""
    return COMMAND_HEADER, msgspec.json.encode(_Header(name, id, issuer))


def new_id() -> str:
    return uuid.uuid4().hex[:16]


def issuer() -> str:
    """Return who sends a command from this process: user@host."""
    return f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()}"


def command_of(message: Message) -> Command | None:
    """Return the command that a record carries; None for an ordinary record. A plain-text header is a name alone.

    :raises BadCommand: the header is neither text nor written by `header`, or a field is too long.
    """
    for name, value in message.headers() or ():
        if name == COMMAND_HEADER:
            return _parsed(value if isinstance(value, bytes) else str(value or "").encode(), message.offset() or 0)
    return None


def renamed(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return the headers of a pinned command with today's names, because it may have been pinned under another prefix.

    A pinned record is always a command. Without today's header, the first header with the same ending is the command.
    """
    for name, _ in headers:
        if name == COMMAND_HEADER:
            return list(headers)
    ending = COMMAND_HEADER[len(_PREFIX) :]
    for i, (name, value) in enumerate(headers):
        if name.endswith(ending):
            before = b'{"name":"%s.' % name.removesuffix(ending).encode()
            after = b'{"name":"%s.' % _PREFIX.encode()
            return [*headers[:i], (COMMAND_HEADER, (value or b"").replace(before, after, 1)), *headers[i + 1 :]]
    return list(headers)


def _unpacked(data: bytes) -> _Header:
    """:raises BadCommand: it is nested too deep. :raises UNREADABLE: it is not what `header` writes."""
    brackets = _STRING.sub(b"", data)
    if brackets.count(b"{") + brackets.count(b"[") > _NESTED:
        raise BadCommand(f"header {COMMAND_HEADER}: nested more than {_NESTED} deep")
    return _decode_header(data)


def _parsed(data: bytes, offset: int) -> Command:
    found = _read(data)
    return Command(found.name, found.id, found.issuer, offset)


@lru_cache(maxsize=64)  # answers and ticks, by the thousand, have one header each
def _read(data: bytes) -> _Header:
    if len(data) > _LARGEST:
        raise BadCommand(f"header {COMMAND_HEADER}: {len(data)} bytes, more than {_LARGEST}")
    try:
        found = _unpacked(data) if data[:1] == b"{" else _Header(data.decode())
    except UNREADABLE as error:
        raise BadCommand(f"header {COMMAND_HEADER}: {error}") from error
    if not found.name or max(map(len, (found.name, found.id, found.issuer))) > _LONGEST:
        raise BadCommand(f"header {COMMAND_HEADER}: name, id and issuer take 1 to {_LONGEST} characters each")
    return found
