"""Decoding bytes that any writer of a topic may have written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

#: the errors that msgspec raises for bytes that it cannot decode; RecursionError is for bytes that are nested too deep
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
#: calls that `with_room` reserves: more than the stacks of live loop, replay and tools differ
_ROOM: Final = 64
#: most bytes of a value that is not nested deep enough to depend on the stack
SHALLOW: Final = 500


def prepare(kind: Any) -> None:
    """Let msgspec build what it has to know of a type, before several threads use it.

    Two threads that use a class first at the same time end the process with SIGSEGV (msgspec 0.22).
    """
    msgspec.msgpack.Decoder(kind)


def with_room(call: Callable[[Any], T], argument: Any, calls: int = _ROOM) -> T:
    """Call with this number of nested calls less than the interpreter has left.

    How deep a value may be nested depends on the caller's stack. A value that is accepted with room can be decoded,
    stored and sent from other stacks, too; otherwise a replay could reject what the live loop has accepted. Each level
    goes through C, because Python 3.12 and later count calls of C functions only.
    """
    if not calls:
        return call(argument)
    again: Callable[..., T] = with_room
    return next(map(again, (call,), (argument,), (calls - 1,)))
