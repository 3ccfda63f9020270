"""The types of keys and values of a table: equal keys must have equal bytes, and values must be immutable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Final, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import inspect

from statehold.common.decoding import type_info
from statehold.errors import UsageError

#: an instance of exactly this type always comes back as it was
EXACT_TYPES: Final = frozenset((str, int, bytes, bool, UUID, date))
#: values of one spelling, and without parts
SIMPLE: Final = (
    inspect.StrType,
    inspect.IntType,
    inspect.BytesType,
    inspect.BoolType,
    inspect.EnumType,
    inspect.UUIDType,
    inspect.DateType,
    inspect.LiteralType,
)
_PLAIN: Final = (*SIMPLE, inspect.DateTimeType)
_ORDERED: Final = (
    inspect.StrType,
    inspect.IntType,
    inspect.BytesType,
    inspect.BoolType,
    inspect.UUIDType,
    inspect.DateType,
    inspect.DateTimeType,
)
_MUTABLE: Final = (
    inspect.ListType,
    inspect.SetType,
    inspect.DictType,
    inspect.TypedDictType,
    inspect.ByteArrayType,
    inspect.AnyType,
)
_ADVICE: Final = {
    inspect.FloatType: "use an int of the smallest unit, or str",
    inspect.DecimalType: "Decimal('1.10') equals Decimal('1.1') and has other bytes; use an int of the smallest unit, "
    "or str, which also reads stored Decimal keys",
    inspect.UnionType: "use a tuple whose first item names the kind",
    inspect.AnyType: "name the type",
}

#: where a table's committed values are; None: `state.storage` decides
_STORAGES: Final = (None, "memory", "disk")
#: a table on disk finds its rows by the bytes of such keys, or of tuples of them
_ON_DISK: Final = (str, bytes, int)
_LESS: Final = attrgetter("__lt__")
_ORDER_ADVICE: Final = {
    inspect.EnumType: "use StrEnum or IntEnum, which also read stored keys",
    inspect.StructType: "declare it with order=True",
    inspect.DataclassType: "declare it with order=True",
}


def require_key_type(kind: Any) -> None:
    """:raises UsageError: keys of this type may be equal and have different bytes, or cannot be keys at all."""
    try:
        found = type_info(kind)
    except (TypeError, ValueError) as error:
        raise UsageError(f"Table(key={shown(kind)}): keys of this type cannot be stored: {error}") from error
    for bad in _unusable(found):
        advice = _ADVICE.get(type(bad), "use str, int, bytes or a tuple of them")
        raise UsageError(f"Table(key={shown(kind)}): {_named(bad)} cannot be a key or a part of one: {advice}")


def require_ordered_key(kind: Any) -> None:
    """:raises UsageError: keys of this type have no order, so rows with the same due time would have none."""
    for found in _without_order(type_info(kind)):
        advice = _ORDER_ADVICE.get(type(found), "use str, int, bytes or a tuple of them")
        raise UsageError(f"key={shown(kind)}: {_named(found)} has no order: {advice}")


def require_storage(storage: Any, kind: Any) -> None:
    """:raises UsageError: there is no such storage, or a table with keys of this type cannot be there."""
    if storage not in _STORAGES:
        raise UsageError(f"storage={storage!r}: use 'memory' or 'disk', or None for the setting state.storage")
    parts = get_args(kind) if get_origin(kind) is tuple else (kind,)
    if storage == "disk" and (not parts or any(part not in _ON_DISK for part in parts)):
        raise UsageError(
            f"Table(key={shown(kind)}, storage='disk'): rows on disk are found by the bytes of their key: use str, "
            f"bytes, int or a tuple of them with a fixed length"
        )


def require_immutable(kind: Any) -> None:
    """:raises UsageError: values of this type can be changed in place, which no snapshot would contain."""
    try:
        found = type_info(kind)
    except (TypeError, ValueError):
        return  # a serde, or a type that only the table's own serde knows
    for bad in _mutable(found, set()):
        raise UsageError(
            f"Table(value={shown(kind)}): {_named(bad)} can be changed in place, and a change that is not put is lost "
            f"with the next restore. Use a frozen type, such as Struct(frozen=True) or a tuple, or pass mutable=True, "
            f"which copies the value at each get and put"
        )


def _mutable(found: inspect.Type, known: set[type]) -> Iterator[inspect.Type]:
    """Yield the mutable parts of a type; `known` ends the recursion of types that contain themselves."""
    cls = getattr(found, "cls", None)
    if isinstance(found, _MUTABLE) or (isinstance(cls, type) and not _is_frozen(cls)):
        yield found
    if cls in known:
        return
    if isinstance(cls, type):
        known.add(cls)
    for part in _parts(found):
        yield from _mutable(part, known)


def _parts(found: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the types that an immutable type is made of."""
    if isinstance(found, inspect.Metadata):
        yield found.type
    elif isinstance(found, inspect.UnionType):
        yield from found.types
    elif isinstance(found, inspect.TupleType):
        yield from found.item_types
    elif isinstance(found, inspect.VarTupleType | inspect.FrozenSetType):
        yield found.item_type
    elif isinstance(found, inspect.NamedTupleType | inspect.StructType | inspect.DataclassType):
        yield from (field.type for field in found.fields)


def _is_frozen(kind: type) -> bool:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen
    if dataclasses.is_dataclass(kind):
        return bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    if hasattr(kind, "__attrs_attrs__"):
        return kind.__setattr__.__name__ == "_frozen_setattrs"  # attrs of before 25.4 has no other sign
    return True


def exact_check(kind: Any) -> Callable[[list[Any]], bool]:
    """Return a quick check of whether all keys are of exactly this type, so that they come back; False: unknown."""
    if kind in EXACT_TYPES:
        return partial(_are, kind)
    items = get_args(kind)
    if get_origin(kind) is tuple and items and EXACT_TYPES.issuperset(items):
        return partial(_are_tuples, items)
    return _unknown


def _are(kind: type, values: Iterable[Any]) -> bool:
    return {kind}.issuperset(map(type, values))


def _are_tuples(items: tuple[type, ...], keys: list[Any]) -> bool:
    if not _are(tuple, keys) or not {len(items)}.issuperset(map(len, keys)):
        return False
    return all(_are(kind, map(itemgetter(index), keys)) for index, kind in enumerate(items))


def _unknown(keys: list[Any]) -> bool:
    return not keys


def _unusable(found: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the parts of a type that no key may have."""
    if isinstance(found, inspect.Metadata):
        yield from _unusable(found.type)
    elif isinstance(found, inspect.TupleType):
        for item in found.item_types:
            yield from _unusable(item)
    elif isinstance(found, inspect.VarTupleType):
        yield from _unusable(found.item_type)
    elif isinstance(found, inspect.NamedTupleType | inspect.StructType | inspect.DataclassType):
        if not is_value(found.cls):
            yield found
        for field in found.fields:
            yield from _unusable(field.type)
    elif not isinstance(found, _PLAIN):
        yield found


def _without_order(found: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the parts of a key's type of which `<` compares no two values."""
    cls = getattr(found, "cls", None)
    if isinstance(cls, type) and _compares_fields(cls):
        for part in _parts(found):
            yield from _without_order(part)
    elif isinstance(cls, type):
        if _LESS(cls) in (_LESS(object), _LESS(msgspec.Struct)):
            yield found
    elif isinstance(found, inspect.Metadata | inspect.TupleType | inspect.VarTupleType):
        for part in _parts(found):
            yield from _without_order(part)
    elif isinstance(found, inspect.LiteralType):
        if len(set(map(type, found.values))) > 1:
            yield found
    elif not isinstance(found, _ORDERED):
        yield found


def _compares_fields(kind: type) -> bool:
    """Return whether `<` compares the fields of two instances in turn."""
    if issubclass(kind, msgspec.Struct):
        return bool(kind.__struct_config__.order)
    if dataclasses.is_dataclass(kind):
        return bool(kind.__dataclass_params__.order)  # type: ignore[attr-defined]
    return issubclass(kind, tuple)


def is_value(kind: type) -> bool:
    """Return whether instances are frozen and compare all their fields."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_config__.frozen and kind.__struct_config__.eq
    if dataclasses.is_dataclass(kind):
        parameters = kind.__dataclass_params__  # type: ignore[attr-defined]
        return parameters.frozen and parameters.eq and all(field.compare for field in dataclasses.fields(kind))
    return True


def _named(found: inspect.Type) -> str:
    cls = getattr(found, "cls", None)
    return cls.__name__ if isinstance(cls, type) else type(found).__name__.removesuffix("Type").lower()


def shown(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
