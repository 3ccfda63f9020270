"""The classes that a value of an output or an answer may have, where its serde would write what no reader reads."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from statehold.api.values.difference import brief
from statehold.errors import UsageError


def checked_types(kind: Any) -> frozenset[type] | None:
    """Return the classes that are to be checked: Structs, or one of str, int and bytes, each with None or not.

    None for all others, whose serde rejects a wrong value.
    """
    kinds = get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else (kind,)
    structs = all(isinstance(each, type) and issubclass(each, (msgspec.Struct, NoneType)) for each in kinds)
    return frozenset(kinds) if structs or set(kinds) - {NoneType} in ({str}, {int}, {bytes}) else None


def require_type(types: frozenset[type], value: Any, where: str, declared: str) -> None:
    """Check a value that has none of these types itself: its class may be derived from one.

    `where` and `declared` name what takes it, and how it is declared with its type.

    :raises UsageError:
    """
    if int in types and hasattr(value, "__index__"):  # such as numpy's integers
        return
    if not isinstance(value, tuple(types)):
        wanted = " | ".join(sorted(kind.__name__ for kind in types))
        needs = f", and a null value (a tombstone) needs the type {wanted} | None" if value is None else ""
        raise UsageError(f"{where}: {brief(value)} is of type {type(value).__name__}, {declared}{wanted}{needs}")
