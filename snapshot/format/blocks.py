"""Frames one after the other, each with its length before it: how chunks lie in files and objects."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from statehold.snapshot.format.frame import MAX_BODY, BadFrame

_LENGTH = struct.Struct("<I")
#: a frame's head, and a body of the largest legal size that did not compress
_LARGEST = MAX_BODY + 65_536


def block(data: bytes) -> bytes:
    """The frame with its length before it."""
    return _LENGTH.pack(len(data)) + data


def blocks(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The frames of a file from where it stands up to position `end`.

    :raises BadFrame: a length leads past the end.
    """
    position = file.tell()
    while position < end:
        head = file.read(_LENGTH.size)
        size = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else -1
        position += _LENGTH.size + size
        if not 0 <= size <= _LARGEST or position > end:
            raise BadFrame(f"cut off or damaged near byte {file.tell()}")
        data = file.read(size)
        if len(data) != size:
            raise BadFrame(f"cut off at byte {file.tell()}")
        yield data
