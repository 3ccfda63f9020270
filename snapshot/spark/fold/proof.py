"""Sums the digest of a folded state by chunks, and compares it (rules D4, 1.3). Does not use Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Final

import msgspec

from statehold.snapshot.spark.fold.newest import Keys, as_msgpack
from statehold.state import digest
from statehold.state.digest import MODULUS, packed_seeds, seeded_digest, seeds

#: Number of tables whose two digests are tried in every combination.
_MOST_TABLES: Final = 12


class Sums(msgspec.Struct):
    """The sum of the hashes of one table's keys, and the number of keys. Sums of parts add up.

    There are two sums, for keys hashed as text and as msgpack, because only the handler knows the type of the keys.
    """

    text: int = 0
    packed: int = 0
    keys: int = 0

    def add(self, table: str, keys: Keys, values: list[bytes]) -> None:
        self.text += seeded_digest(values, _seeds(table, keys, text=True))
        self.packed += seeded_digest(values, _seeds(table, keys, text=False))
        self.keys += len(keys)

    def join(self, other: Sums) -> None:
        self.text, self.packed, self.keys = self.text + other.text, self.packed + other.packed, self.keys + other.keys


class KnownSums(Sums):
    """The sum of a table whose type of keys is known."""

    def of(self, table: str, keys: Keys, values: list[bytes], *, text: bool) -> None:
        """Add these keys, hashed as text or as msgpack."""
        self.text = self.packed = self.text + seeded_digest(values, _seeds(table, keys, text=text))
        self.keys += len(keys)


def _seeds(table: str, keys: Keys, *, text: bool) -> Iterable[int]:
    if text and keys and isinstance(keys[0], str):
        return seeds(table, keys)
    return packed_seeds(table, as_msgpack(keys), text=text)


def proves(sums: Mapping[str, Sums], wanted: bytes, keys: int) -> str:
    """Return '' if these tables have that digest and that number of keys, else the difference."""
    count = sum(each.keys for each in sums.values())
    if count != keys:
        return f"{count} keys were folded, the commit record has {keys}"
    expected = digest.from_bytes(wanted)
    choices = [(each.text, each.packed) for each in list(sums.values())[:_MOST_TABLES]]
    rest = sum(each.text for each in list(sums.values())[_MOST_TABLES:])
    if any((sum(chosen) + rest) % MODULUS == expected for chosen in product(*choices)):
        return ""
    found = sum(each.text for each in sums.values())
    return f"the folded state's digest is {digest.show(found)}, the commit record's {digest.show(expected)}"
