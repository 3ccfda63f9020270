"""The types that keys of records may have: equal keys have equal bytes, because the bytes decide the partition."""

from __future__ import annotations

from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    ForwardRef,
    NamedTuple,
    NewType,
    Optional,
    Union,
    get_args,
    get_origin,
)
from uuid import UUID

import msgspec
from msgspec import inspect

from statehold.api.values import serde
from statehold.api.values.table_types import SIMPLE, is_value, shown
from statehold.common.decoding import type_info
from statehold.common.type_arguments import open_variables
from statehold.errors import UsageError

#: types with a spelling of their own
PLAIN: Final = (str, bytes, int, UUID)
#: types whose keys are JSON
_JSON: Final = (
    inspect.StructType,
    inspect.DataclassType,
    inspect.NamedTupleType,
    inspect.TupleType,
    inspect.VarTupleType,
)
#: what these may be made of
_PARTS: Final = (*_JSON, *SIMPLE, inspect.NoneType, inspect.Metadata)
_TEXT: Final = "declare str or int and convert record.key in the handler, or put it into a tuple or a Struct"
_MOMENT: Final = ": equal times of two zones have other bytes. Next: use an int of milliseconds, or a date"
_ORDER: Final = ". Next: use a tuple, sorted if the order means nothing"
_UNION: Final = ". Next: use a tuple whose first item names the kind"
_ADVICE: Final = {
    inspect.FloatType: ": 1.0 equals 1 and has other bytes. Next: use an int of the smallest unit, or str",
    inspect.DecimalType: ": 1.5 equals 1.50 and has other bytes. Next: use an int of the smallest unit, or str",
    inspect.DateTimeType: _MOMENT,
    inspect.TimeType: _MOMENT,
    inspect.UnionType: _UNION,
    inspect.ListType: _ORDER,
    inspect.SetType: _ORDER,
    inspect.FrozenSetType: _ORDER,
    inspect.AnyType: ". Next: name the type; without one a key is bytes, or None",
}
_OTHERS: Final = ". Next: use str, bytes, int, UUID, or a tuple or frozen Struct of them"


class KeyType(NamedTuple):
    """What a declaration of keys says."""

    #: a class of `PLAIN`, another type, or a serde
    kind: Any
    #: records without a key are accepted
    nullable: bool
    #: the declaration without names and notes: `str | None` for `AccountId | None`
    declared: Any


def read_key_type(declared: Any) -> KeyType:
    """Return what a declaration of keys says.

    :raises UsageError: the type is not supported: two equal keys may have different bytes, or it is no type.
    """
    found = _unwrapped(declared)
    rest = serde.without_none(found)
    kind, nullable = _unwrapped(rest), rest is not found
    if (given := serde.bare(kind)) is not kind:  # Annotated with a serde, which gets no None
        kind, nullable = given, nullable or serde.without_none(rest.__origin__) is not rest.__origin__
    if isinstance(kind, serde.Json | serde.MsgPack):
        _require_parts(kind.type, declared)
    if not isinstance(kind, type) and isinstance(kind, serde.Serde):
        return KeyType(kind, nullable, declared)
    if not (isinstance(kind, type) and kind in PLAIN):
        _require_supported(kind, declared)
    return KeyType(kind, nullable, Optional[kind] if nullable else kind)  # noqa: UP045  also of a text


def _unwrapped(kind: Any) -> Any:
    """Return a type without the names and the notes that say nothing about its bytes."""
    if isinstance(kind, NewType):
        return _unwrapped(kind.__supertype__)
    if get_origin(kind) is not Annotated or serde.bare(kind) is not kind:
        return kind
    return kind if any(isinstance(note, msgspec.Meta) for note in kind.__metadata__) else _unwrapped(kind.__origin__)


def _require_supported(kind: Any, declared: Any) -> None:
    """:raises UsageError: the type is neither a class of JSON keys, nor made of parts that may be in one."""
    if isinstance(kind, type) and isinstance(kind, serde.Serde):
        raise _refused(declared, f"it is the class of a serde. Next: {kind.__name__}()")
    if isinstance(kind, str | ForwardRef):
        raise _refused(declared, "it is a text. Next: name the type itself")
    if kind is type(None):
        raise _refused(declared, "no key has it. Next: leave it out, then a key is bytes, or None")
    if open_variables(kind):
        raise _refused(declared, "it leaves a type variable open. Next: give the class its arguments")
    if get_origin(kind) is Annotated:
        raise _refused(declared, f"nothing would check the limits of its Meta. Next: {_TEXT}")
    found = _described(kind, declared)
    if not isinstance(found, (*_JSON, *_ADVICE)):
        what = f"{shown(kind)} is not one of str, bytes, int, UUID, a tuple, and a frozen Struct or dataclass"
        raise _refused(declared, f"{what}. Next: {_TEXT if isinstance(found, _PARTS) else 'use one, or a serde'}")
    _require_parts(kind, declared)


def _require_parts(kind: Any, declared: Any) -> None:
    """:raises UsageError: a part of the type has several spellings, can be changed, or is unknown to msgspec."""
    if serde.is_pydantic(kind):
        raise _refused(declared, "a Pydantic model is no key. Next: use a frozen Struct or dataclass")
    for part in serde.types_in(_described(kind, declared)):
        cls = getattr(part, "cls", None)
        if isinstance(part, inspect.UnionType) and len(part.types) == 2 and part.includes_none:
            continue
        if isinstance(part, _PARTS) and isinstance(cls, type) and not is_value(cls):
            raise _refused(
                declared, f"two of {cls.__name__} with equal fields are not one key. Next: frozen=True, and compare all"
            )
        if not isinstance(part, _PARTS):
            name = cls.__name__ if isinstance(cls, type) else type(part).__name__.removesuffix("Type").lower()
            raise _refused(declared, f"{name} cannot be a key or a part of one{_ADVICE.get(type(part), _OTHERS)}")


def _described(kind: Any, declared: Any) -> inspect.Type:
    try:
        return type_info(kind)
    except Exception as error:  # msgspec raises several for what is no type, and names in it may be unknown
        advice = _UNION if get_origin(kind) in (Union, UnionType) else _OTHERS
        raise _refused(declared, f"{str(error).rstrip('.')}{advice}") from error


def _refused(declared: Any, why: str) -> UsageError:
    args = get_args(declared)
    named = declared.__name__ if isinstance(declared, type | NewType) and not args else repr(declared)
    if isinstance(declared, serde.Json | serde.MsgPack):
        named = f"{type(declared).__name__}({shown(declared.type)})"
    return UsageError(f"keys of the type {named:.200} are not supported: {why}")
