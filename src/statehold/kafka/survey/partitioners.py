"""Says which partitioner the keys of an input follow, by keys that were sampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from statehold.common.partitioner import PARTITIONERS

#: the names in texts
NAMED: Final = {
    "murmur2": "murmur2, as of Java's producers and of statehold",
    "crc32": "CRC32, librdkafka's default",
    "fnv1a": "FNV-1a, as of librdkafka's fnv1a_random and of Sarama",
}
#: a partitioner counts as followed if keys placed by chance would follow it less often than this
_CHANCE: Final = 1e-4


class KeySample(NamedTuple):
    """Keys of an input's records, with the partitions that each was found in."""

    topic: str
    partitions: int
    found: dict[bytes, set[int]]

    @property
    def scattered(self) -> dict[bytes, set[int]]:
        """Return the keys that are in several partitions."""
        return {key: where for key, where in self.found.items() if len(where) > 1}

    @property
    def enough(self) -> bool:
        """Return whether it has enough keys, because a few follow a partitioner by chance."""
        return float(self.partitions) ** -len(self.found) < _CHANCE

    def shares(self) -> dict[str, float]:
        """Return by partitioner how many of the keys are only where it places them."""
        return {
            name: sum(where == {place(key, self.partitions)} for key, where in self.found.items()) / len(self.found)
            for name, place in PARTITIONERS.items()
            if self.found
        }

    @property
    def followed(self) -> str:
        """Return the partitioner that all keys follow; empty if they follow none, or are too few."""
        follows = [name for name, share in self.shares().items() if share == 1]
        return follows[0] if self.enough and len(follows) == 1 else ""


class KeyMismatch(NamedTuple):
    """Two inputs that have records of one key in different partitions, or would have."""

    one: KeySample
    other: KeySample
    reason: str


def mismatches(samples: Sequence[KeySample]) -> Iterator[KeyMismatch]:
    """Yield each pair of inputs whose keys do not meet: by a key that both have, else by their partitioners."""
    for one, other in combinations(samples, 2):
        if one.partitions != other.partitions:
            continue  # that is another check
        apart = [key for key, where in one.found.items() if not where & other.found.get(key, where)]
        if apart:
            key = min(apart)
            here, there = min(one.found[key]), min(other.found[key])
            yield KeyMismatch(
                one, other, f"key {key!r} is in partition {here} of {one.topic}, in partition {there} of {other.topic}"
            )
        elif one.followed and other.followed and one.followed != other.followed:
            yield KeyMismatch(one, other, f"{one.topic} and {other.topic} follow different partitioners")
