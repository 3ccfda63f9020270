"""The rows of a table in its files: a checksum and the stored value, under the bytes of the key."""

from __future__ import annotations

import struct
from hashlib import blake2b
from operator import add
from typing import Final, NamedTuple

from statehold.state.digest import hash64

#: bytes of a key in the files; a longer key is cut, and its row has the whole key
LONGEST: Final = 480
_HASH: Final = 32
_CHECK: Final = struct.Struct("<Q")
_LENGTH: Final = struct.Struct("<I")


class DamagedRow(Exception):
    """A row is not the one that was written."""


class Row(NamedTuple):
    """A key as encoded, and the stored value."""

    key: bytes
    value: bytes


def place_of(key: bytes) -> bytes:
    """Return the bytes under which the row of an encoded key is stored."""
    if len(key) < LONGEST:
        return key
    return key[: LONGEST - _HASH] + blake2b(key, digest_size=_HASH).digest()  # no cheap hash: strangers choose keys


def check_of(place: bytes) -> bytes:
    """Return the row of a place that has no value."""
    return _CHECK.pack(hash64(b"", hash64(place)))


def packed_rows(keys: list[bytes], values: list[bytes | None]) -> dict[bytes, bytes | None]:
    """Return the rows of encoded keys by their places; None stays None."""
    if max(map(len, keys), default=0) < LONGEST and None not in values:
        checks = map(_CHECK.pack, map(hash64, values, map(hash64, keys)))  # type: ignore[arg-type]
        return dict(zip(keys, map(add, checks, values), strict=True))
    places = map(place_of, keys)
    return {
        place: None if value is None else packed(key, place, value)
        for key, place, value in zip(keys, places, values, strict=True)
    }


def packed(key: bytes, place: bytes, value: bytes) -> bytes:
    """Return the row of a key that is stored at `place`."""
    body = value if len(key) < LONGEST else _LENGTH.pack(len(key)) + key + value
    return _CHECK.pack(hash64(body, hash64(place))) + body


def bodies(places: list[bytes], rows: list[bytes | None]) -> list[bytes | None]:
    """Return the values of rows at places that are whole keys; None stays None. :raises DamagedRow:"""
    if None in rows:
        return [None if row is None else value_of(place, row) for place, row in zip(places, rows, strict=True)]
    values = [row[_CHECK.size :] for row in rows]  # type: ignore[index]
    checks = list(map(_CHECK.pack, map(hash64, values, map(hash64, places))))
    if checks != [row[: _CHECK.size] for row in rows]:  # type: ignore[index]
        raise DamagedRow("a row differs from its checksum")
    return values


def value_of(place: bytes, row: bytes) -> bytes:
    """Return the value of a row without its key. :raises DamagedRow:"""
    if len(place) >= LONGEST:
        return unpacked(place, row).value
    value = row[_CHECK.size :]
    if _CHECK.pack(hash64(value, hash64(place))) != row[: _CHECK.size]:
        raise DamagedRow("a row differs from its checksum")
    return value


def unpacked(place: bytes, row: bytes) -> Row:
    """Return the key and the value of a row. :raises DamagedRow:"""
    body = row[_CHECK.size :]
    if len(row) < _CHECK.size or _CHECK.unpack_from(row)[0] != hash64(body, hash64(place)):
        raise DamagedRow("a row differs from its checksum")
    if len(place) < LONGEST:
        return Row(place, body)
    (length,) = _LENGTH.unpack_from(body)
    return Row(body[_LENGTH.size : _LENGTH.size + length], body[_LENGTH.size + length :])
