"""Encodes the keys of tables on disk as bytes in the order of the keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, get_args, get_origin

_SHIFT: Final = 1 << 63
_INT_BYTES: Final = 9
#: a zero byte within a text is followed by _INSIDE, the end of a text is two zero bytes
_ZERO: Final = b"\0"
_INSIDE: Final = b"\0\xff"
_END: Final = b"\0\0"
#: raised for a value that is no key of the type
NO_KEY: Final = (TypeError, ValueError, OverflowError, AttributeError)


class KeyCodec(NamedTuple):
    """Both directions. `encode` raises one of `NO_KEY` for a value of another type."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def key_codec(kind: Any) -> KeyCodec | None:
    """Return the codec of str, bytes, int or a tuple of them with a fixed length; None for another type."""
    if kind in _SINGLE:
        return _SINGLE[kind]
    parts = get_args(kind) if get_origin(kind) is tuple else ()
    if not parts or any(part not in _SINGLE for part in parts):
        return None
    return KeyCodec(_encoder(parts), _decoder(parts))


def _bytes(key: bytes) -> bytes:
    if not isinstance(key, bytes):
        raise TypeError(f"{type(key).__name__} is not bytes")
    return key


def _encode_int(key: int) -> bytes:
    return (key + _SHIFT).to_bytes(_INT_BYTES, "big")


def _decode_int(data: bytes) -> int:
    return int.from_bytes(data, "big") - _SHIFT


_SINGLE: Final[dict[Any, KeyCodec]] = {
    str: KeyCodec(str.encode, bytes.decode),
    bytes: KeyCodec(_bytes, _bytes),
    int: KeyCodec(_encode_int, _decode_int),
}


def _encoder(parts: tuple[Any, ...]) -> Callable[[Any], bytes]:
    single = [_SINGLE[part].encode for part in parts]

    def encode(key: Any) -> bytes:
        if len(key) != len(single):
            raise ValueError(f"a tuple of {len(single)}")
        pieces = []
        for part, value, coded in zip(parts, key, single, strict=True):
            data = coded(value)
            pieces.append(data if part is int else data.replace(_ZERO, _INSIDE) + _END)
        return b"".join(pieces)

    return encode


def _decoder(parts: tuple[Any, ...]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        values, at = [], 0
        for part in parts:
            if part is int:
                values.append(_decode_int(data[at : at + _INT_BYTES]))
                at += _INT_BYTES
                continue
            end = data.index(_END, at)
            values.append(_SINGLE[part].decode(data[at:end].replace(_INSIDE, _ZERO)))
            at = end + len(_END)
        return tuple(values)

    return decode
