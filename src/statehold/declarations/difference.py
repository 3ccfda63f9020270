"""Where two values are not the same: of other types, or with other content."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec


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
        open_pairs += [(f"{path}{place}", one, other) for place, one, other in parts]
    return None


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.100} ({type(value).__qualname__})"
    except RecursionError:
        return f"a deeply nested {type(value).__qualname__}"


def _parts(live: Any, back: Any) -> list[tuple[str, Any, Any]] | None:
    """Return the parts that remain to be compared, in reverse; None if the two differ."""
    if type(live) is not type(back):
        return None
    if isinstance(live, list | tuple):
        return _items(live, back)
    if isinstance(live, dict):
        same = difference(list(live), list(back)) is None
        return [(f"[{key!r:.50}]", value, back[key]) for key, value in live.items()][::-1] if same else None
    if isinstance(live, set | frozenset):
        same = {(type(item), item) for item in live} == {(type(item), item) for item in back}
    elif (names := _fields(live)) is not None:
        same = _undeclared(live) == _undeclared(back)
        parts = ((f".{name}", getattr(live, name, None), getattr(back, name, None)) for name in reversed(names))
        return list(parts) if same else None
    else:
        same = live is back or (repr(live) == repr(back) and getattr(live, "fold", 0) == getattr(back, "fold", 0))
    return [] if same else None


def _items(live: Any, back: Any) -> list[tuple[str, Any, Any]] | None:
    if len(live) != len(back):
        return None
    named = getattr(live, "_fields", None)
    places = [f".{name}" for name in named] if named else [f"[{number}]" for number in range(len(live))]
    return list(zip(places, live, back, strict=True))[::-1]


def _undeclared(value: Any) -> set[str]:
    """Return the attributes that are no declared fields, which no bytes hold."""
    return set(getattr(value, "__dict__", ())) - set(_fields(value) or ())


def _fields(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    attrs = getattr(type(value), "__attrs_attrs__", None)
    return None if attrs is None else tuple(each.name for each in attrs)
