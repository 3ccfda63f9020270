"""Serdes of the keys of records. One key has one spelling, because its bytes decide the partition."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, Protocol, TypeVar, runtime_checkable
from uuid import UUID

from statehold.api.values import serde
from statehold.api.values.difference import brief
from statehold.api.values.key_types import read_key_type
from statehold.api.values.table_types import shown
from statehold.errors import RegistryUnreachable, UsageError, text_of

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
            raise ValueError(f"{brief(value)} is no integer of 8 bytes") from None

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


class _Utf8:
    """UTF-8 text, as `serde.Text`, without a method of Python for each key."""

    __slots__ = ()

    encode, decode = staticmethod(str.encode), staticmethod(bytes.decode)


_PLAIN: Final[dict[Any, serde.Serde[Any]]] = {str: _Utf8(), bytes: serde.Raw(), int: _Digits(), UUID: _Uuid()}


class _Checked:
    """A serde of msgspec that writes only what its type reads, and the type writes again in the same way."""

    __slots__ = ("_again", "decode")

    def __init__(self, given: serde.Json | serde.MsgPack) -> None:
        self._again, self.decode = given.encode, given.decode

    def encode(self, key: Any, /) -> bytes:
        data = self._again(key)
        if (again := self._again(self.decode(data))) != data:
            raise ValueError(f"a reader would take it for {again!r:.100}")
        return data


class KeySerde:
    """The serde of the keys of one topic, with errors that say that the key is meant."""

    __slots__ = ("_decode", "_encode", "_kind", "_nullable", "name", "type")

    def __init__(self, declared: Any, topic: str = "") -> None:
        """`declared`: a type or a serde, with `| None` for records without a key.

        :raises UsageError: the type is not supported (`read_key_type`).
        """
        kind, self._nullable, self.type = read_key_type(declared)
        #: the class of its keys, if it is one of the plain ones
        self._kind: Any = None
        found: serde.Serde[Any]
        if isinstance(kind, type) and kind in _PLAIN:
            self._kind, found = kind, _PLAIN[kind]
        elif isinstance(kind, OfKeys):
            found = kind.for_keys_of(topic)
        else:
            found = serde.for_messages(kind, topic)
        if isinstance(found, serde.Json | serde.MsgPack):
            found = _Checked(found)
        self._encode, self._decode = found.encode, found.decode
        is_serde = not isinstance(kind, type) and isinstance(kind, serde.Serde)
        #: the name of the declared type, without `| None`
        self.name: str = type(kind).__name__ if is_serde else shown(kind)

    @property
    def nullable(self) -> bool:
        """Whether a record may have no key."""
        return self._nullable

    def encode(self, key: Any, /) -> bytes | None:
        """:raises UsageError: the key is missing, or not of the declared type."""
        if key is None:
            if self._nullable:
                return None
            raise UsageError(
                f"there is no key, and it is declared with key={self.name}: the key decides which partition gets the "
                f"record"
            )
        if self._kind is not None and not isinstance(key, self._kind):
            raise UsageError(
                f"the key {brief(key)} is of type {type(key).__name__}, it is declared with key={self.name}: the key "
                f"decides which partition gets the record"
            )
        try:
            return self._encode(key)
        except (RegistryUnreachable, UsageError):
            raise
        except Exception as error:  # a serde of the user may raise anything
            raise UsageError(
                f"the key {brief(key)} of type {type(key).__name__} cannot be written as {self.name}: {text_of(error)}"
            ) from error

    def decode(self, data: bytes | None, /) -> Any:
        """:raises UnreadableKey: the bytes are no key of the declared type."""
        if data is None:
            if self._nullable:
                return None
            raise UnreadableKey(f"the record has no key; to receive such records, {self._advice}")
        try:
            return self._decode(data)
        except RegistryUnreachable:
            raise
        except Exception as error:
            raise UnreadableKey(f"the key {data!r:.100} is no {self.name}: {text_of(error)}") from error

    def decode_all(self, given: Sequence[bytes | None], /) -> list[Any]:
        """Return what `decode` returns for each. It may raise anything where `decode` raises `UnreadableKey`."""
        decode: Callable[[Any], Any] = self.decode if None in given else self._decode
        return list(map(decode, given))

    @property
    def _advice(self) -> str:
        kind = serde.bare(serde.without_none(self.type))
        if isinstance(kind, type) or not isinstance(kind, serde.Serde):
            return f"declare {self.name} | None"
        return f"declare Annotated[{'int, Int64()' if isinstance(kind, Int64) else 'TYPE, SERDE'}] | None"


def key_serde(what: str, declared: Any, topic: str = "") -> KeySerde:
    """Return the serde of a declaration of keys; `what` names it in errors. :raises UsageError: as KeySerde."""
    try:
        return KeySerde(declared, topic)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from error.__cause__


def same_bytes(kind: Any) -> bool:
    """Return whether a declared type of keys is what `Record.key` has without a declaration: bytes, or None."""
    return kind is None or kind == bytes | None


def _other_spelling(key: object) -> NoReturn:
    raise ValueError(f"it is written as {key}, and another spelling has another partition")
