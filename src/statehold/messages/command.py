"""Commands: records of the input that are addressed to the service itself, and take their place in its order."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Sequence
from typing import Final

import msgspec

from statehold.record import Message

_PREFIX: Final = "statehold"
#: a record of the input with this header is a command: given to on_command, never to on_record
COMMAND_HEADER: Final = "statehold-command"
#: the command that asks for a full
TAKE: Final = "take"
#: the command that has the partition written in the newest format, from its own mark on
FINISH_UPGRADE: Final = "finish-upgrade"
#: the commands that have the partition stand still and go on; by the control topic only: a partition that stands still
#: reads no input
PAUSE: Final = "pause"
GO_ON: Final = "resume"
SWITCHES: Final = frozenset((PAUSE, GO_ON))
#: the clock of an idle partition, as marks pin it; whoever sends it by hand moves no clock
TICK: Final = "statehold.tick"
#: what the handler does not see
OWN: Final = frozenset((TAKE, FINISH_UPGRADE, *SWITCHES))
#: every mark repeats the commands of its transaction, and has to fit a message
_LONGEST: Final = 200


class Command(msgspec.Struct, frozen=True, array_like=True):
    """What the header says, and the offset of the record that carries it."""

    name: str
    id: str = ""
    issuer: str = ""
    offset: int = -1


class BadCommand(ValueError):
    """The header is no command."""


class _Header(msgspec.Struct, omit_defaults=True):
    name: str
    id: str = ""
    issuer: str = ""


def header(name: str, id: str = "", issuer: str = "") -> tuple[str, bytes]:
    """The header of a command record, JSON. The record's value is best null, its key too."""
    return COMMAND_HEADER, msgspec.json.encode(_Header(name, id, issuer))


def new_id() -> str:
    return uuid.uuid4().hex[:16]


def issuer() -> str:
    """Who sends a command from this process: user@host."""
    return f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()}"


def command_of(message: Message) -> Command | None:
    """The command that a record carries, None for an ordinary one. A header of plain text is a name alone.

    :raises BadCommand: it is neither text nor what `header` writes, or one of its fields is too long.
    """
    for name, value in message.headers() or ():
        if name == COMMAND_HEADER:
            return _parsed(value if isinstance(value, bytes) else str(value or "").encode(), message.offset() or 0)
    return None


def renamed(headers: Sequence[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """The headers of a pinned command by today's names: it may have been pinned under another prefix.

    What is pinned is a command for certain, so without today's header it is the first that ends as that one does.
    """
    ending = COMMAND_HEADER[len(_PREFIX) :]
    if not any(name == COMMAND_HEADER for name, _ in headers):
        for i, (name, value) in enumerate(headers):
            if name.endswith(ending):
                before = b'{"name":"%s.' % name.removesuffix(ending).encode()
                after = b'{"name":"%s.' % _PREFIX.encode()
                return [*headers[:i], (COMMAND_HEADER, (value or b"").replace(before, after, 1)), *headers[i + 1 :]]
    return list(headers)


def _parsed(data: bytes, offset: int) -> Command:
    try:
        found = msgspec.json.decode(data, type=_Header) if data[:1] == b"{" else _Header(data.decode())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadCommand(f"header {COMMAND_HEADER}: {error}") from error
    if not found.name or max(map(len, (found.name, found.id, found.issuer))) > _LONGEST:
        raise BadCommand(f"header {COMMAND_HEADER}: name, id and issuer take 1 to {_LONGEST} characters each")
    return Command(found.name, found.id, found.issuer, offset)
