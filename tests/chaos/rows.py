"""Records as a reader sees them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import Message

_ORIGIN = struct.Struct("<IQI")


class Row(NamedTuple):
    """One record of a topic as a read_committed reader sees it; `origin` is statehold's header, if there is one."""

    partition: int
    offset: int
    value: bytes
    origin: tuple[int, int, int] | None
    key: bytes = b""
    #: all the others
    headers: Mapping[str, bytes] = MappingProxyType({})
    #: milliseconds since 1970
    time: int = 0


def row_of(message: Message) -> Row:
    value = message.value() or b""
    origin = None
    headers: Any = message.headers()
    for name, header in headers or ():
        if name == "sh" and isinstance(header, bytes) and len(header) == _ORIGIN.size:
            origin = _ORIGIN.unpack(header)
    rest = {name: header for name, header in headers or () if name != "sh"}
    key = bytes(message.key() or b"")
    return Row(message.partition() or 0, message.offset() or 0, bytes(value), origin, key, rest, message.timestamp()[1])
