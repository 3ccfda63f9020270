"""Serdes convert values to bytes and back: JSON and MessagePack by msgspec, or any object with encode and decode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol, TypeVar, get_origin, runtime_checkable

import msgspec

T = TypeVar("T")


@runtime_checkable
class Serde(Protocol[T]):
    """The interface that converts values of a table, an output or an input.

    `decode` may raise any exception for bytes that it cannot read; statehold reports it with the record's coordinates.
    """

    def encode(self, value: T, /) -> bytes: ...

    def decode(self, data: bytes, /) -> T: ...


class Json:
    """JSON of any type that msgspec supports: Struct, dataclass, TypedDict, int, str, list and others."""

    __slots__ = ("decode", "encode")

    def __init__(self, type: Any = Any) -> None:
        self.encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
        self.decode: Callable[[bytes], Any] = msgspec.json.Decoder(type).decode


class MsgPack:
    """MessagePack of any type that msgspec supports; the default of tables."""

    __slots__ = ("decode", "encode")

    def __init__(self, type: Any = Any) -> None:
        self.encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self.decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(type).decode


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
    """Bytes as they are."""

    __slots__ = ()

    def encode(self, value: bytes, /) -> bytes:
        return value

    def decode(self, data: bytes, /) -> bytes:
        return data


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

    `Annotated[Order, serde]` uses the serde.
    """
    kind = _bare(kind)
    if (given := of_topic(kind)) is not None:
        return given.for_topic(topic)
    return _PLAIN[kind] if kind in _PLAIN else _given(kind) or Json(kind)


def of_topic(kind: Any) -> OfTopic | None:
    """Return the given serde if it depends on its topic: then each partition has its own."""
    kind = _bare(kind)
    return kind if not isinstance(kind, type) and isinstance(kind, OfTopic) else None


def for_state(kind: Any) -> Serde[Any]:
    """Return the serde of a table's values: the given serde, else MessagePack."""
    return _given(kind) or MsgPack(kind)


def _bare(kind: Any) -> Any:
    """Return the serde in an `Annotated` type; any other type as it is."""
    return next(filter(_given, kind.__metadata__), kind) if get_origin(kind) is Annotated else kind


def _given(kind: Any) -> Serde[Any] | None:
    return kind if not isinstance(kind, type) and isinstance(kind, Serde) else None
