"""Where two values are not the same: of other types, or with other content."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from inspect import getattr_static
from typing import Any, Final

import msgspec

#: a part that only one of the two values has
_ABSENT: Final = object()
_Part = tuple[str, Any, Any]


def difference(live: Any, back: Any) -> str | None:
    """Return where two values are not the same, and both: `.amount is 1 (int) and would be 1.0 (float)`; else None.

    The order of a set is no difference. It needs no recursion, because values may be nested as deeply as msgspec reads.
    """
    open_pairs = [("", live, back)]
    while open_pairs:
        path, live, back = open_pairs.pop()
        parts = _parts(live, back)
        if parts is None:
            return f"{path or 'the value'} is {_shown(live)} and would be {_shown(back)} after a restore"
        open_pairs += [(f"{path}{place}", one, other) for place, one, other in reversed(parts)]
    return None


def brief(value: Any, length: int = 100) -> str:
    """Return the beginning of a value's repr, also of one that has none, such as an integer of 5,000 digits."""
    try:
        return repr(value)[:length]
    except Exception:  # noqa: BLE001  a class may have a repr of its own, and a value may be nested too deeply for it
        return f"a value without a repr, of type {type(value).__qualname__}"


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else f"{brief(value)} ({type(value).__qualname__})"


def _parts(live: Any, back: Any) -> list[_Part] | None:
    """Return the parts that remain to be compared; None if the two differ."""
    if type(live) is not type(back):
        return None
    if isinstance(live, list | tuple):
        return _items(live, back)
    if isinstance(live, dict):
        same = difference(list(live), list(back)) is None
        pairs = zip(live.items(), back.values(), strict=False)  # not by key, because nan finds no nan
        return [(f"[{brief(key, 50)}]", value, other) for (key, value), other in pairs] if same else None
    if isinstance(live, set | frozenset):
        return list(_members(live, back)) if len(live) == len(back) else None
    if (names := _fields(live)) is not None:
        names = (*names, *sorted((_undeclared(live) | _undeclared(back)).difference(names)))
        return [(f".{name}", getattr(live, name, _ABSENT), getattr(back, name, _ABSENT)) for name in names]
    return [] if live is back or _content(live) == _content(back) else None


def _items(live: Any, back: Any) -> list[_Part] | None:
    if len(live) != len(back):
        return None
    named = getattr(live, "_fields", None)
    places = [f".{name}" for name in named] if named else [f"[{number}]" for number in range(len(live))]
    return list(zip(places, live, back, strict=True))


def _members(live: Any, back: Any) -> Iterator[_Part]:
    """Yield each member with the equal one, because equal ones need not be the same; what has none by its repr."""
    equal = {item: item for item in back}
    alone = []
    for item in live:
        if item in equal:
            yield f"{{{brief(item, 50)}}}", item, equal.pop(item)
        else:
            alone.append(item)
    for item, other in zip(sorted(alone, key=brief), sorted(equal, key=brief), strict=True):
        yield f"{{{brief(item, 50)}}}", item, other


def _content(value: Any) -> object:
    """Return what two values of one type, which have no parts, have in common if they are the same."""
    if isinstance(value, memoryview):
        return bytes(value), value.format, value.readonly
    if isinstance(value, int):  # an integer may have more digits than Python writes
        return int(value)
    return bytes(value) if isinstance(value, msgspec.Raw) else (repr(value), getattr(value, "fold", 0))


def _undeclared(value: Any) -> set[str]:
    """Return the attributes that are no declared fields, which no bytes hold; a cached property is made from them."""
    found = getattr(value, "__dict__", ())
    return {name for name in found if not isinstance(getattr_static(type(value), name, None), cached_property)}


def _fields(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if isinstance(value, msgspec.msgpack.Ext):
        return "code", "data"
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    attrs = getattr(type(value), "__attrs_attrs__", None)
    return None if attrs is None else tuple(each.name for each in attrs)
