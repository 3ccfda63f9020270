"""statehold's records read from the description of their format (docs/reference/format.md), with none of its code."""

from __future__ import annotations

import struct
import sys
from typing import Any

import msgspec
import xxhash

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_HEAD = struct.Struct("<BcBBIQ")
ACCOUNTS, BLOCKED_KEYS = "accounts", "statehold.parked"
_TABLES = {name: xxhash.xxh3_64_intdigest(name.encode()) for name in (ACCOUNTS, BLOCKED_KEYS)}
MODULUS = 2**128


def unframe(value: bytes) -> tuple[str, Any]:
    """The kind letter and the body of a record; ValueError when it is damaged."""
    _, kind, codec, _, size, checksum = _HEAD.unpack_from(value)
    body = value[_HEAD.size :]
    if codec == 1:
        body = zstd.decompress(body)
    if len(body) != size or xxhash.xxh3_64_intdigest(body) != checksum:
        raise ValueError(f"a damaged frame of kind {kind!r}")
    return kind.decode(), msgspec.msgpack.decode(body)


def stored(total: int, count: int, link: int | None = None) -> bytes:
    """An account as its table stores it."""
    linked = {} if link is None else {"link": link}
    return msgspec.msgpack.encode({"total": total, "count": count, **linked})


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def key_hash(account: str, value: bytes, table: str = ACCOUNTS) -> int:
    """What one key adds to the digest of a state."""
    return xxhash.xxh3_128_intdigest(value, xxhash.xxh3_64_intdigest(account.encode(), _TABLES[table]))
