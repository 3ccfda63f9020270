"""Computes the size by which the client limits a message to `kafka.message_max_bytes`."""

from __future__ import annotations

from typing import Final

from statehold.api.output import Headers
from statehold.errors import MessageRefused

#: no limit
ANY_SIZE: Final = 1 << 40
#: most bytes of a record's own fields in the message format 2
_FIELDS: Final = 36


def require_size(topic: str, value: bytes | None, key: bytes | None, headers: Headers | None, most: int) -> None:
    """:raises MessageRefused: librdkafka would reject the message, because it takes more than `most` bytes."""
    size = _FIELDS + len(value or b"") + len(key or b"")
    size += sum(_sized(name.encode()) + _sized(held or b"") for name, held in headers or ())
    if size > most:
        raise MessageRefused(
            f"MSG_SIZE_TOO_LARGE(10): {size} bytes to {topic}, kafka.message_max_bytes is {most}: raise it and the "
            f"topic's max.message.bytes, or send less"
        )


def _sized(part: bytes) -> int:
    """Return the bytes of a part of a header, with its length as a signed varint."""
    return len(part) + max(1, -(-(2 * len(part)).bit_length() // 7))
