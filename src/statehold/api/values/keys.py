"""Serdes of the keys of records. One key has one spelling, because its bytes decide the partition."""

from __future__ import annotations

import struct
from typing import Any, Final, NoReturn, Protocol, TypeVar, runtime_checkable
from uuid import UUID

from statehold.api.values import serde
from statehold.errors import RegistryUnreachable, UsageError

T = TypeVar("T")

_INT64: Final = struct.Struct(">q")


@runtime_checkable
class OfKeys(Protocol):
    """A serde that differs between keys and values of a topic, such as the serdes of a schema registry."""

    def for_keys_of(self, topic: str) -> serde.Serde[Any]: ...


class UnreadableKey(ValueError):
    """The key of a record is not of the declared type."""


class Int64:
    """An integer as 8 bytes, big endian, with a sign: the keys of Java's LongSerializer."""

    __slots__ = ()

    def encode(self, value: int, /) -> bytes:
        try:
            return _INT64.pack(value)
        except struct.error:
            raise ValueError(f"{value!r:.100} is no integer of 8 bytes") from None

    def decode(self, data: bytes, /) -> int:
        if len(data) != _INT64.size:
            raise ValueError(f"8 bytes expected, got {len(data)}")
        key: int = _INT64.unpack(data)[0]
        return key


class _Digits:
    """An integer as decimal text, in the one way in which it is written."""

    __slots__ = ()

    def encode(self, value: int, /) -> bytes:
        return b"%d" % value

    def decode(self, data: bytes, /) -> int:
        key = int(data)
        if b"%d" % key != data:
            _other_spelling(key)
        return key


class _Uuid:
    """A UUID as its 36 characters in lower case, as Java's UUIDSerializer writes it."""

    __slots__ = ()

    def encode(self, value: UUID, /) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes, /) -> UUID:
        key = UUID(data.decode())
        if str(key).encode() != data:
            _other_spelling(key)
        return key


_PLAIN: Final[dict[Any, serde.Serde[Any]]] = {str: serde.Text(), bytes: serde.Raw(), int: _Digits(), UUID: _Uuid()}


class KeySerde:
    """The serde of the keys of one topic, with errors that say that the key is meant."""

    __slots__ = ("_decode", "_encode", "_kind", "_nullable", "type")

    def __init__(self, type: Any, topic: str = "") -> None:
        """`type`: a type or a serde, with `| None` for records without a key.

        :raises UsageError: no serde is given, and msgspec does not support the type.
        """
        kind = serde.without_none(type)
        self.type, self._nullable = type, kind is not type
        #: the class of its keys, if there is one
        self._kind: Any = kind if kind in _PLAIN else None
        given = serde.bare(kind)
        found: serde.Serde[Any]
        if self._kind is not None:
            found = _PLAIN[kind]
        else:
            found = given.for_keys_of(topic) if isinstance(given, OfKeys) else serde.for_messages(kind, topic)
        self._encode, self._decode = found.encode, found.decode

    def encode(self, key: Any, /) -> bytes | None:
        """:raises UsageError: the key is not of the declared type."""
        if key is None and self._nullable:
            return None
        if self._kind is not None and not isinstance(key, self._kind):
            raise UsageError(
                f"the key {key!r:.100} is of type {type(key).__name__}, it is declared with key={self.name}: the key "
                f"decides which partition gets the record"
            )
        try:
            return self._encode(key)
        except (RegistryUnreachable, UsageError):
            raise
        except Exception as error:  # a serde of the user may raise anything
            raise UsageError(
                f"the key {key!r:.100} of type {type(key).__name__} cannot be written as {self.name}: {error}"
            ) from error

    def decode(self, data: bytes | None, /) -> Any:
        """:raises UnreadableKey: the bytes are no key of the declared type."""
        if data is None:
            if self._nullable:
                return None
            raise UnreadableKey(f"the record has no key; to receive such records, declare {self.name} | None")
        try:
            return self._decode(data)
        except RegistryUnreachable:
            raise
        except Exception as error:
            raise UnreadableKey(f"the key {data!r:.100} is no {self.name}: {error}") from error

    @property
    def name(self) -> str:
        """The name of the declared type, without `| None`."""
        kind = serde.bare(serde.without_none(self.type))
        named: str = kind.__name__ if hasattr(kind, "__name__") else type(kind).__name__
        return named if isinstance(kind, type | serde.Serde) else str(kind)


def same_bytes(kind: Any) -> bool:
    """Return whether a declared type of keys is what `Record.key` has without a declaration: bytes, or None."""
    return kind is None or kind == bytes | None


def _other_spelling(key: object) -> NoReturn:
    raise ValueError(f"it is written as {key}, and another spelling has another partition")
