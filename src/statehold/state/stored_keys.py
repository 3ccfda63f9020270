"""Keys as a snapshot stores them: the function that reads them, and whether a key comes back as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import GenericAlias
from typing import Any, Final

import msgspec

from statehold.api.values.difference import difference
from statehold.common.decoding import UNREADABLE, make_decoder
from statehold.errors import text_of

_encode: Final = msgspec.msgpack.Encoder().encode


@cache
def key_decoder(kind: Any) -> Callable[[bytes | msgspec.Raw], list[Any]]:
    """Return the function that reads stored keys of a type, as a list in msgpack; all partitions share it."""
    return make_decoder(msgspec.msgpack.Decoder, GenericAlias(list, (kind,))).decode


def come_back(kind: Any, keys: list[Any]) -> bool:
    """Return whether keys come back from a snapshot as the same keys of this type, with the same bytes."""
    if kind in (str, bytes) and not all(isinstance(key, kind) for key in keys):
        return False
    try:
        data = _encode(keys)
        back = key_decoder(kind)(data)
        return difference(keys, back) is None and _encode(back) == data
    except (TypeError, ValueError, OverflowError, *UNREADABLE):
        return False


def why_not(kind: Any, key: Any) -> str:
    """Return why a key does not come back."""
    try:
        return f"it would come back as {key_decoder(kind)(_encode([key]))[0]!r}"
    except (TypeError, ValueError, OverflowError, *UNREADABLE) as error:
        return text_of(error)
