"""Serdes convert values to bytes and back: JSON and MessagePack by msgspec, or any object with encode and decode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Protocol, TypeVar, Union, get_args, get_origin, runtime_checkable

import msgspec
from msgspec import inspect

from statehold.common.decoding import make_decoder, type_info
from statehold.errors import UsageError

T = TypeVar("T")


@runtime_checkable
class Serde(Protocol[T]):
    """The interface that converts values of a table, an output or an input.

    `decode` may raise any exception for bytes that it cannot read; statehold reports it with the record's coordinates.
    """

    def encode(self, value: T, /) -> bytes: ...

    def decode(self, data: bytes, /) -> T: ...


class Json:
    """JSON of any type that msgspec supports: Struct, dataclass, TypedDict, int, str, list and others.

    :raises UsageError: msgspec does not support the type or a part of it.
    """

    def __init__(self, type: Any = Any) -> None:
        _require_supported(type)
        self.type = type
        self.encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
        self.decode: Callable[[bytes], Any] = make_decoder(msgspec.json.Decoder, type).decode


class MsgPack:
    """MessagePack of any type that msgspec supports; the default of tables. Raises as `Json`."""

    def __init__(self, type: Any = Any) -> None:
        _require_supported(type)
        self.type = type
        self.encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self.decode: Callable[[bytes], Any] = make_decoder(msgspec.msgpack.Decoder, type).decode


class Text:
    """UTF-8 text."""

    __slots__ = ()

    def encode(self, value: str, /) -> bytes:
        return value.encode()

    def decode(self, data: bytes, /) -> str:
        return data.decode()


class Integer:
    """An integer as decimal text, readable in every console."""

    __slots__ = ()

    def encode(self, value: int, /) -> bytes:
        return b"%d" % value

    def decode(self, data: bytes, /) -> int:
        return int(data)


class Raw:
    """Bytes as they are; a null value is an error."""

    __slots__ = ()

    def encode(self, value: bytes, /) -> bytes:
        if value is None:
            raise TypeError("a null value (a tombstone) needs the type bytes | None")
        return value

    decode = staticmethod(bytes)


class Nullable:
    """None is a null value (a tombstone); the serde `given` converts all others."""

    __slots__ = ("_given",)

    def __init__(self, given: Serde[Any]) -> None:
        self._given = given

    def encode(self, value: Any, /) -> Any:
        return None if value is None else self._given.encode(value)

    def decode(self, data: bytes | None, /) -> Any:
        return None if data is None else self._given.decode(data)


class Pydantic:
    """JSON of a type with Pydantic models, which validate it. For messages only: pydantic must be installed."""

    def __init__(self, type: Any) -> None:
        from pydantic import TypeAdapter

        adapter: TypeAdapter[Any] = TypeAdapter(type)
        self.encode: Callable[[Any], bytes] = adapter.dump_json
        self.decode: Callable[[bytes], Any] = adapter.validate_json


_PLAIN: dict[Any, Serde[Any]] = {str: Text(), int: Integer(), bytes: Raw()}


@runtime_checkable
class OfTopic(Protocol):
    """A serde that depends on its topic, such as the serdes of a schema registry."""

    def for_topic(self, topic: str) -> Serde[Any]: ...

    def check_input(self) -> None:
        """Check the input's schema before the service starts; raises StartError."""

    def check_output(self) -> None:
        """Check the output's schema before the service starts; raises StartError."""


def for_messages(kind: Any, topic: str = "") -> Serde[Any]:
    """Return the serde of a topic's values: Text, Integer or Raw for str, int or bytes; the given serde; else JSON.

    `Annotated[Order, serde]` uses the serde. With `| None`, None is a null value.

    :raises UsageError: no serde is given, and neither msgspec nor Pydantic supports the type.
    """
    if (rest := without_none(kind)) is not kind:
        found = for_messages(rest, topic)
        return Nullable(type(found)(rest | None) if isinstance(found, Json | Pydantic) else found)
    kind = bare(kind)
    if (given := of_topic(kind)) is not None:
        return given.for_topic(topic)
    if (own := _given(kind)) is not None:  # it may have no hash
        return own
    return _PLAIN[kind] if kind in _PLAIN else Pydantic(kind) if is_pydantic(kind) else Json(kind)


def without_none(kind: Any) -> Any:
    """Return a union without its None, such as `Order` for `Order | None`; any other type as it is.

    An `Annotated` union without a serde keeps its other metadata, such as limits of msgspec.
    """
    if get_origin(kind) is Annotated and not any(map(_given, kind.__metadata__)):
        rest = without_none(kind.__origin__)
        return kind if rest is kind.__origin__ else Annotated[rest, *kind.__metadata__]
    kinds = get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else ()
    return reduce(or_, [each for each in kinds if each is not NoneType]) if NoneType in kinds else kind


def is_pydantic(kind: Any) -> bool:
    """Return whether the type is a Pydantic model or dataclass, or has one as an argument."""
    return hasattr(kind, "__pydantic_core_schema__") or any(map(is_pydantic, get_args(kind)))


def of_topic(kind: Any) -> OfTopic | None:
    """Return the given serde if it depends on its topic: then each partition has its own."""
    kind = bare(without_none(kind))
    return kind if not isinstance(kind, type) and isinstance(kind, OfTopic) else None


def for_state(kind: Any) -> Serde[Any]:
    """Return the serde of a table's values: the given serde, else MessagePack."""
    return _given(kind) or MsgPack(kind)


def bare(kind: Any) -> Any:
    """Return the serde in an `Annotated` type; any other type as it is."""
    return next(filter(_given, kind.__metadata__), kind) if get_origin(kind) is Annotated else kind


def _given(kind: Any) -> Serde[Any] | None:
    return kind if not isinstance(kind, type) and isinstance(kind, Serde) else None


def _require_supported(kind: Any) -> None:
    """:raises UsageError: msgspec could encode or decode no value of this type."""
    if (foreign := next(_foreign(type_info(kind)), None)) is not None:
        name = kind.__name__ if isinstance(kind, type) and not get_args(kind) else kind
        raise UsageError(
            f"{name}: values of the class {foreign.__name__} cannot be stored or sent. Use a "
            f"msgspec.Struct, a dataclass, or a type that msgspec supports; or pass an object with encode and decode"
            f"{_MODELS if is_pydantic(foreign) else ''}"
        )


_MODELS = (
    ". A Pydantic model is supported as the type of an input, an output or reference data, not in a table, "
    "a Struct or a dataclass"
)


def _foreign(found: inspect.Type) -> Iterator[type]:
    """Yield the classes in a type that msgspec does not know."""
    return (each.cls for each in types_in(found) if isinstance(each, inspect.CustomType) and each.cls is not object)


def types_in(found: inspect.Type, known: set[Any] | None = None) -> Iterator[inspect.Type]:
    """Yield a type and those that it is made of; `known` ends types that contain themselves."""
    known = set() if known is None else known
    cls = getattr(found, "cls", None)
    if cls is not None:
        if cls in known:
            return
        known.add(cls)
    yield found
    for name in found.__struct_fields__:
        given = getattr(found, name)
        for part in given if isinstance(given, tuple) else (given,):
            kind = part.type if isinstance(part, inspect.Field) else part
            if isinstance(kind, inspect.Type):
                yield from types_in(kind, known)
