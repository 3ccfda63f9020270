"""Where Kafka's Java producers put a key: for custom partitioners, and for whatever runs without a broker."""

from __future__ import annotations

import random
from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(key: bytes | None, partitions: int) -> int:
    """The partition of `key` among `partitions`, as Java's producers and librdkafka's murmur2_random say.

    `Output` needs no partitioner for this: librdkafka does it, in C. A record without a key goes
    anywhere, at random.
    """
    if key is None:
        return random.randrange(partitions)
    return (hash_of(key) & 0x7FFFFFFF) % partitions


def hash_of(data: bytes) -> int:
    """The 32 bit murmur2 hash with Kafka's seed, unsigned."""
    length = len(data)
    whole = length & ~3
    h = _SEED ^ length
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    if length != whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15
