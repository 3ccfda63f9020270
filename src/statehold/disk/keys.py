"""Encodes the keys of tables on disk as bytes in the order of the keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, get_args, get_origin

_SHIFT: Final = 1 << 63
INT_BYTES: Final = 9
#: begins a text that is a whole key, because LMDB has no empty one
_FIRST: Final = b"\1"
#: behind every key
_LAST: Final = b"\xff"
#: a zero byte within a text is followed by _INSIDE, the end of a text is two zero bytes
_ZERO: Final = b"\0"
_INSIDE: Final = b"\0\xff"
_END: Final = b"\0\0"
#: raised for a value that is no key of the type
NO_KEY: Final = (TypeError, ValueError, OverflowError, AttributeError)


class KeyCodec(NamedTuple):
    """Both directions. `encode` and `cut` raise one of `NO_KEY` for a value of another type.

    Values that are equal, such as 1, 1.0 and True, have the same bytes, because they are one key of a dict.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    #: returns the bytes behind which are exactly the keys that are not less than a bound, which may be no key itself:
    #: a number that is no int of 64 bits, a shorter tuple or a longer one
    cut: Callable[[Any], bytes]


def key_codec(kind: Any) -> KeyCodec | None:
    """Return the codec of str, bytes, int or a tuple of them with a fixed length; None for another type."""
    if kind in _SINGLE:
        return _SINGLE[kind]
    parts = get_args(kind) if get_origin(kind) is tuple else ()
    if not parts or any(part not in _SINGLE for part in parts):
        return None
    return KeyCodec(_encoder(parts), _decoder(parts), _cutter(parts))


def _bytes(key: bytes) -> bytes:
    if not isinstance(key, bytes | memoryview):
        raise TypeError(f"{type(key).__name__} is not bytes")
    return bytes(key)


def encode_int(key: float) -> bytes:
    number = int(key)
    if number != key:
        raise ValueError(f"{key!r} equals no int")
    return (number + _SHIFT).to_bytes(INT_BYTES, "big")


def decode_int(data: bytes) -> int:
    return int.from_bytes(data, "big") - _SHIFT


def _is_int(number: float) -> bool:
    """Return whether a number equals an int of a key."""
    return -_SHIFT <= number < 2 * _SHIFT and number == math.ceil(number)


def _cut_int(bound: float) -> bytes:
    if bound <= -_SHIFT:
        return b""
    return _LAST if bound >= 2 * _SHIFT else encode_int(math.ceil(bound))


def _encode_part(kind: Any, value: Any) -> bytes:
    if kind is int:
        return encode_int(value)
    data: bytes = value.encode() if kind is str else _bytes(value)
    return data.replace(_ZERO, _INSIDE) + _END


def _str(key: str) -> bytes:
    return _FIRST + str.encode(key)


def _whole(key: bytes) -> bytes:
    return _FIRST + _bytes(key)


_SINGLE: Final[dict[Any, KeyCodec]] = {
    str: KeyCodec(_str, lambda data: data[1:].decode(), _str),
    bytes: KeyCodec(_whole, lambda data: data[1:], _whole),
    int: KeyCodec(encode_int, decode_int, _cut_int),
}


def _encoder(parts: tuple[Any, ...]) -> Callable[[Any], bytes]:
    def encode(key: Any) -> bytes:
        if len(key) != len(parts):
            raise ValueError(f"a tuple of {len(parts)}")
        return b"".join(map(_encode_part, parts, key))

    return encode


def _cutter(parts: tuple[Any, ...]) -> Callable[[Any], bytes]:
    def cut(bound: Any) -> bytes:
        before = b""
        for part, value in zip(parts, bound, strict=False):
            if part is int and not _is_int(value):
                return before + _cut_int(value)
            before += _encode_part(part, value)
        return before + b"\0" if len(bound) > len(parts) else before

    return cut


def _decoder(parts: tuple[Any, ...]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        values: list[Any] = []
        at = 0
        for part in parts:
            if part is int:
                values.append(decode_int(data[at : at + INT_BYTES]))
                at += INT_BYTES
                continue
            end = data.index(_END, at)
            text = data[at:end].replace(_INSIDE, _ZERO)
            values.append(text.decode() if part is str else text)
            at = end + len(_END)
        return tuple(values)

    return decode
