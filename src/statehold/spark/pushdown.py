"""The part of a query's filters that a read can use: partitions, keys, and ranges of keys.

A filter only saves work: Spark applies all of them again, so a read may return rows that none accepts, but it must
never leave out a row that all accept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from statehold.snapshot.spark.fold.newest import Keys, as_msgpack

_pack: Final = msgspec.msgpack.Encoder().encode
#: types whose order in Python is their order in Spark
_ORDERED: Final = (str, int)
#: most keys that are found by their bytes
_SOUGHT: Final = 4
#: name of a filter's class -> lower or upper bound, and whether it belongs to the range
_BOUNDS: Final = {
    "GreaterThan": ("low", False),
    "GreaterThanOrEqual": ("low", True),
    "LessThan": ("high", False),
    "LessThanOrEqual": ("high", True),
}


class Range(msgspec.Struct):
    """The values of one column that filters leave over."""

    #: None: any
    equal: frozenset[Any] | None = None
    low: Any = None
    low_inside: bool = True
    high: Any = None
    high_inside: bool = True

    @property
    def everything(self) -> bool:
        return self.equal is None and self.low is None and self.high is None

    def add(self, kind: str, value: Any) -> None:
        """Narrow the range by a filter."""
        if kind in ("EqualTo", "EqualNullSafe"):
            value = (value,)
        if kind in ("EqualTo", "EqualNullSafe", "In"):
            given = frozenset(value)
            self.equal = given if self.equal is None else self.equal & given
            return
        side, inside = _BOUNDS[kind]
        if side == "low" and (self.low is None or (value, not inside) > (self.low, not self.low_inside)):
            self.low, self.low_inside = value, inside
        elif side == "high" and (self.high is None or (value, inside) < (self.high, self.high_inside)):
            self.high, self.high_inside = value, inside

    def holds(self, value: Any) -> bool:
        if self.equal is not None and value not in self.equal:
            return False
        if self.low is not None and not (value >= self.low if self.low_inside else value > self.low):
            return False
        return self.high is None or (value <= self.high if self.high_inside else value < self.high)


class Pushed:
    """The filters of one read, by column. `key_type` is the table's; keys of most types have no filter."""

    def __init__(self, key_type: Any = None) -> None:
        self.partition, self.key = Range(), Range()
        self._key_type = key_type if key_type in _ORDERED else None
        self._decode = msgspec.msgpack.Decoder(key_type).decode if self._key_type is not None else None

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._key_type, self.partition, self.key)

    def take(self, filters: Sequence[Any]) -> None:
        """Use those filters that the read understands."""
        for each in filters:
            kind, column = type(each).__name__, getattr(each, "attribute", ())
            value = getattr(each, "value", None)
            if kind not in ("EqualTo", "EqualNullSafe", "In", *_BOUNDS):
                continue
            if column == ("partition",) and _all_are(int, value, kind):
                self.partition.add(kind, value)
            elif column == ("key",) and self._key_type is not None and _all_are(self._key_type, value, kind):
                self.key.add(kind, value)

    @property
    def sought(self) -> list[bytes]:
        """Return the bytes that all wanted keys have, one of them each; none if keys cannot be found by their bytes.

        A number is too short to be found, and many keys would take longer than the decoding of all.
        """
        equal = self.key.equal
        if self._key_type is not str or equal is None or len(equal) > _SOUGHT:
            return []
        return [key.encode() for key in equal]

    def chosen(self, keys: Keys) -> list[int] | None:
        """Return the numbers of the wanted keys; None: all of them."""
        wanted, found = self.key, cast("list[Any]", keys)
        if wanted.everything or self._decode is None:
            return None
        as_text = self._key_type is str and len(keys) > 0 and isinstance(keys[0], str)
        if wanted.low is None and wanted.high is None and wanted.equal is not None:
            given = wanted.equal if as_text else frozenset(map(_pack, wanted.equal))
            if not as_text:
                found = as_msgpack(keys)
            return [] if given.isdisjoint(found) else [i for i, key in enumerate(found) if key in given]
        if not as_text:
            found = list(map(self._decode, as_msgpack(keys)))
        return [i for i, key in enumerate(found) if wanted.holds(key)]


def _all_are(kind: type, value: Any, name: str) -> bool:
    values = value if name == "In" else (value,)
    return isinstance(values, Sequence) and all(type(each) is kind for each in values)


def _restored(key_type: Any, partition: Range, key: Range) -> Pushed:
    found = Pushed(key_type)
    found.partition, found.key = partition, key
    return found
