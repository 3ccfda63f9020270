"""Computes the digest of a state, which does not depend on order and is updated key by key (rule D4).

The digest is the sum, modulo 2^128, of one hash per key: xxh3_128 of the stored value, seeded by the 64-bit hash of the
key, which in turn is seeded by the hash of the table's name. It guards against bugs and damage, not against an
attacker.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any

import msgspec
import xxhash

MODULUS = 1 << 128
#: the hashes of a key, and of a value
hash64 = xxhash.xxh3_64_intdigest
hash128 = xxhash.xxh3_128_intdigest
_encode = msgspec.msgpack.Encoder().encode


def table_digest(table: str, keys: list[Any], values: Iterable[bytes]) -> int:
    """Return the sum of the hashes of these keys and values, not yet reduced modulo 2^128."""
    return sum(map(hash128, values, seeds(table, keys)))


def seeded_digest(values: Iterable[bytes], key_seeds: Iterable[int]) -> int:
    return sum(map(hash128, values, key_seeds))


def seeds(table: str, keys: list[Any]) -> Iterable[int]:
    """Return the 64-bit hash of each key, seeded by the table's name."""
    blobs: Iterable[bytes] = keys
    if keys and isinstance(keys[0], str):
        blobs = map(str.encode, keys)
    elif keys and not isinstance(keys[0], bytes):
        blobs = map(_encode, keys)
    return map(hash64, blobs, repeat(hash64(table.encode())))


def to_bytes(digest: int) -> bytes:
    return (digest % MODULUS).to_bytes(16, "little")


def from_bytes(data: bytes) -> int:
    return int.from_bytes(data, "little")


def show(digest: int | bytes) -> str:
    """Return the digest for people and logs: 32 hexadecimal digits."""
    number = from_bytes(digest) if isinstance(digest, bytes) else digest % MODULUS
    return f"{number:032x}"


def packed_seeds(table: str, keys: list[bytes], *, text: bool) -> Iterable[int]:
    """Return as `seeds`, for msgpack keys of an unknown type.

    `text`: msgpack strings and byte strings stand for str and bytes, whose hash omits the length. A key type that only
    looks so when packed (Decimal, UUID, date, an Enum of strings) is hashed as it is.
    """
    blobs: Iterable[bytes] = keys
    if text and keys and _is_text(keys[0][0]):
        blobs = [key[1:] if 0xA0 <= key[0] <= 0xBF else key[_LENGTHS[key[0]] :] for key in keys]
    return map(hash64, blobs, repeat(hash64(table.encode())))


#: first byte of a msgpack string or byte string with a length of its own -> bytes before its content
_LENGTHS = {0xD9: 2, 0xDA: 3, 0xDB: 5, 0xC4: 2, 0xC5: 3, 0xC6: 5}


def _is_text(first: int) -> bool:
    return 0xA0 <= first <= 0xBF or first in _LENGTHS
