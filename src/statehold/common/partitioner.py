"""The partitions that producers choose for a key: for custom partitioners, and for what runs without a broker."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
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


def crc32(key: bytes, partitions: int) -> int:
    """Return the partition of librdkafka's default partitioner, consistent_random."""
    return zlib.crc32(key) % partitions


def fnv1a(key: bytes, partitions: int) -> int:
    """Return the partition of librdkafka's fnv1a_random, which is that of Sarama's producers in Go."""
    h = 0x811C9DC5
    for byte in key:
        h = (h ^ byte) * 0x01000193 & _MASK
    return min(h, (1 << 32) - h) % partitions  # the absolute value of a signed number


#: (key of the record, number of partitions) -> partition
Partitioner = Callable[[bytes, int], int]
PARTITIONERS: Final[dict[str, Partitioner]] = {"murmur2": murmur2, "crc32": crc32, "fnv1a": fnv1a}
