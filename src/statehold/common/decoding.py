"""Decoding bytes that any writer of a topic may have written."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")

#: the errors that msgspec raises for bytes that it cannot decode; RecursionError is for bytes that are nested too deep
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
#: calls that `with_room` reserves: more than the stacks of live loop, replay and tools differ
_ROOM: Final = 64
#: most bytes of a value that is not nested deep enough to depend on the stack
SHALLOW: Final = 500
_READING: Final = Lock()


def type_info(kind: Any) -> inspect.Type:
    """Return msgspec's description of a type; one thread at a time (`make_decoder`). Raises as msgspec does."""
    with _READING:
        return inspect.type_info(kind)


def make_decoder(make: Callable[[Any], T], kind: Any) -> T:
    """Return `make(kind)`, such as `msgspec.json.Decoder(kind)`; one thread at a time.

    While one thread lets msgspec 0.22 read a class for the first time, another one that reads it, too, may end the
    process with SIGSEGV. So a thread makes decoders and descriptions here alone; those of a module are there before.
    """
    with _READING:
        return make(kind)


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
