"""Writes and reads frames in files and objects, each after its length."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from statehold.snapshot.format.frame import MAX_BODY, BadFrame

_LENGTH = struct.Struct("<I")
#: a frame's head, and a body of the largest legal size that did not compress
_LARGEST = MAX_BODY + 65_536


def block(data: bytes) -> bytes:
    """Return the frame after its length."""
    return _LENGTH.pack(len(data)) + data


def blocks(file: BinaryIO, end: int) -> Iterator[bytes]:
    """Yield the frames of a file from its current position up to `end`.

    :raises BadFrame: a length exceeds the end.
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
