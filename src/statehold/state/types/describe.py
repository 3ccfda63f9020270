"""Describes the types that a handler declares for a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, get_origin

import msgspec
from msgspec import inspect

from statehold.api.values import serde
from statehold.api.values.versioned_values import Versioned
from statehold.common.decoding import type_info
from statehold.errors import UsageError
from statehold.state.types.description import (
    LEFT_OUT,
    VARYING,
    BadDescription,
    Description,
    Field,
    Limit,
    Node,
    Shape,
    TableType,
    of_text,
    to_text,
)

_PLAIN: Final[Mapping[type[Any], tuple[str, Any]]] = {
    serde.Text: ("text", str),
    serde.Integer: ("decimal text", int),
    serde.Raw: ("bytes", bytes),
}
_FORMATS: Final[Mapping[type[Any], str]] = {serde.MsgPack: "msgpack", serde.Json: "json"}


def table_type(name: str, key: Any, value: serde.Serde[Any]) -> TableType:
    """Describe a table by the type of its keys and the serde of its values.

    :raises UsageError: the description is longer, or nested deeper, than a commit record should carry.
    """
    values = value.serdes if isinstance(value, Versioned) else {1: value}
    found = TableType(
        _of_msgspec("msgpack", key), {version: _of_serde(each) for version, each in sorted(values.items())}
    )
    try:
        of_text(to_text(found))
    except BadDescription as error:
        raise UsageError(
            f"table {name!r}: a commit record cannot carry the description of its types: {error}. Next: store what "
            f"varies under one field, such as a dict"
        ) from error
    return found


def _of_serde(given: serde.Serde[Any]) -> Description:
    kind = type(given)
    if kind in _FORMATS:
        return _of_msgspec(_FORMATS[kind], given.type)  # type: ignore[attr-defined]
    if kind in _PLAIN:
        return _of_msgspec(*_PLAIN[kind])
    name, version = getattr(given, "name", kind.__qualname__), getattr(given, "version", "")
    return Description("serde", name=str(name), version=str(version))


def _of_msgspec(format: str, kind: Any) -> Description:
    reading = _Reading()
    node = reading.node(type_info(kind))
    return Description(format, type=node, shapes=tuple(reading.shapes))


_SHAPED: Final = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)


class _Reading:
    """Reads one type; each class in it becomes a shape."""

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        #: by the identity of msgspec's description, of which a type has one for each class and its arguments
        self._numbers: dict[int, int] = {}

    def node(self, found: inspect.Type) -> Node:
        if isinstance(found, inspect.Metadata):
            return self.node(found.type)
        if isinstance(found, _SHAPED):
            number = self._shape(found)
            return Node("array" if self.shapes[number].array else "object", shape=number)
        if isinstance(found, inspect.CustomType):
            return Node(found.cls.__qualname__)
        return Node(_kind(found), _limits(found), _values(found), tuple(map(self.node, _parts(found))))

    def _shape(self, found: Any) -> int:
        if (known := self._numbers.get(id(found))) is not None:
            return known
        number = self._numbers[id(found)] = len(self.shapes)
        array = isinstance(found, inspect.NamedTupleType) or getattr(found, "array_like", False)
        tag, tag_field = getattr(found, "tag", None), getattr(found, "tag_field", None)
        self.shapes.append(Shape((), array, tag_field or "", tag))  # its fields may refer to it
        fields = tuple(self._field(found, each) for each in found.fields)
        self.shapes[number] = msgspec.structs.replace(self.shapes[number], fields=fields)
        return number

    def _field(self, found: Any, field: inspect.Field) -> Field:
        default = None if field.required else _default(field)
        omits = isinstance(found, inspect.StructType) and _class(found.cls).__struct_config__.omit_defaults
        optional = default is not None and (omits or default in (LEFT_OUT, _UNSET))
        return Field(field.encode_name, self.node(field.type), default, optional)


def _values(found: inspect.Type) -> tuple[int | str | bool | None, ...]:
    match found:
        case inspect.EnumType():
            return tuple(member.value for member in found.cls)
        case inspect.LiteralType():
            return found.values
        case _:
            return ()


def _parts(found: inspect.Type) -> tuple[inspect.Type, ...]:
    match found:
        case inspect.UnionType():
            return found.types
        case inspect.TupleType():
            return found.item_types
        case inspect.DictType():
            return found.key_type, found.value_type
        case inspect.CollectionType():
            return (found.item_type,)
        case _:
            return ()


_UNSET: Final = "unset"


def _class(kind: Any) -> Any:
    """Return the class of a generic type with arguments."""
    return get_origin(kind) or kind


def _default(field: inspect.Field) -> str:
    """Return what a value without this field reads as, in JSON."""
    if field.default_factory is not msgspec.NODEFAULT:
        first, second = _made(field.default_factory), _made(field.default_factory)
        return first if first == second else VARYING
    if field.default is msgspec.NODEFAULT:
        return LEFT_OUT
    return _UNSET if field.default is msgspec.UNSET else _made(lambda: field.default)


def _made(factory: Callable[[], Any]) -> str:
    try:
        return msgspec.json.encode(factory(), order="deterministic").decode()
    except Exception:  # noqa: BLE001  a factory may raise anything, and no JSON may exist
        return VARYING


def _kind(found: inspect.Type) -> str:
    return type(found).__name__.removesuffix("Type").lower()


def _limits(found: inspect.Type) -> dict[str, Limit]:
    """Return the limits of a type, such as `ge` and `max_length`, without its parts."""
    given = {name: getattr(found, name) for name in found.__struct_fields__}
    return {name: value for name, value in given.items() if isinstance(value, int | float | str)}
