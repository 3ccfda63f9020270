"""A committed change of a table, and which changes a watch delivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import GenericAlias
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from statehold.api.values import serde, versioned_values
from statehold.common.decoding import UNREADABLE, make_decoder
from statehold.errors import StateholdError, UnreadableValue, UsageError, text_of
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import Part

V_co = TypeVar("V_co", covariant=True)


class TableChange(msgspec.Struct, Generic[V_co], frozen=True, kw_only=True):
    """A committed change of a key. The changes of a partition come in the order of its transactions.

    `value` is the new value; of a key that is `deleted` it is None. `last`: it is the last one of its transaction, so
    all changes up to here are the table as that transaction left it. `position` is where a watch continues behind it.
    """

    key: Any
    value: V_co
    deleted: bool
    partition: int
    #: the transaction whose delta has the change
    transaction: int
    #: topic -> next offset: the transaction includes the input below
    offsets: dict[str, int]
    #: milliseconds since 1970, by the clock of the partition's owner
    time: int
    last: bool
    position: str


#: a key and its stored value, None if it was deleted, and the number of changes of the transaction up to it
Stored = tuple[Any, bytes | None, int]

_split: Final = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw, list[bytes | None]]).decode


class WatchedTable(NamedTuple):
    """The table whose changes are wanted, by its stored name; `decode` reads a value and may raise.

    `declared`: the running code declares it, also if no partition has committed with that code yet.
    """

    name: str
    keys: Callable[[msgspec.Raw], list[Any]]
    decode: Callable[[Any, bytes], Any]
    prefix: str | bytes | None
    declared: bool = False

    @classmethod
    def typed(cls, name: str, key: Any, value: Any, prefix: str | bytes | None) -> WatchedTable:
        """Return a table of these types; `value` may be a serde. For programs without the code of the service.

        :raises UsageError: keys of this type have no such prefix.
        """
        keys = make_decoder(msgspec.msgpack.Decoder, GenericAlias(list, (key,))).decode
        return cls(name, keys, partial(_decoded, serde.for_state(value)), as_prefix(key, prefix, name))

    def stored(self, parts: Sequence[Part], skip: int) -> Iterator[Stored]:
        """Yield the wanted changes of a transaction, without its first `skip` changes.

        :raises UnreadableValue: a key is of another type. :raises frame.BadFrame: an entry is damaged.
        """
        number = 0
        for part in parts:
            for raw in part.entries:
                table, packed, values = _entry(raw)
                if table == self.name:
                    keys = self._keys(packed)
                    if len(keys) != len(values):
                        raise frame.BadFrame(f"table {table!r}: {len(keys)} keys, {len(values)} values")
                    found = enumerate(zip(keys, values, strict=True), number + 1)
                    yield from ((k, value, i) for i, (k, value) in found if i > skip and self._wants(k))
                number += len(values)

    def _wants(self, key: Any) -> bool:
        try:
            return self.prefix is None or key.startswith(self.prefix)
        except (AttributeError, TypeError) as error:
            raise UnreadableValue(
                f"table {self.name!r}: the key {key!r:.100} has no prefix such as {self.prefix!r:.100}. Next: watch "
                f"without `prefix`, or give `key` the type of the table's keys"
            ) from error

    def value(self, key: Any, data: bytes, where: str) -> Any:
        """Return a stored value; `where` names its place. :raises UnreadableValue: it is of another type."""
        try:
            return self.decode(key, data)
        except StateholdError:
            raise
        except Exception as error:  # a serde of the user may raise anything
            raise UnreadableValue(
                f"table {self.name!r}, {where}: the value of the key {key!r:.100} is of another type: "
                f"{text_of(error)}. Next: give `value` the type of the table's values, and watch from the position of "
                f"the change before it"
            ) from error

    def _keys(self, raw: msgspec.Raw) -> list[Any]:
        try:
            return self.keys(raw)
        except UNREADABLE as error:
            raise UnreadableValue(
                f"table {self.name!r}: its keys are of another type: {text_of(error)}. Next: give `key` the type of "
                f"the table's keys"
            ) from error


def _entry(raw: msgspec.Raw) -> tuple[str, msgspec.Raw, list[bytes | None]]:
    """:raises frame.BadFrame: it is no table's name, keys and values."""
    try:
        return _split(raw)
    except UNREADABLE as error:
        raise frame.BadFrame(f"entry: {error}") from error


def as_prefix(kind: Any, prefix: str | bytes | None, table: str) -> str | bytes | None:
    """Return a prefix as one of keys of this type. :raises UsageError: they have none, or not this one."""
    if prefix is None or kind is Any or not isinstance(kind, type):
        return prefix
    if not issubclass(kind, str | bytes):
        raise UsageError(
            f"{table}: prefix={prefix!r:.100} is for keys of str and bytes, and `key` is {kind.__name__}. Nothing was "
            f"read. Next: choose by `start` and `end` of `Client.get_range`"
        )
    if issubclass(kind, bytes):
        return prefix.encode() if isinstance(prefix, str) else prefix
    try:
        return prefix.decode() if isinstance(prefix, bytes) else prefix
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{table}: prefix={prefix!r:.100} is no text, and `key` is str. Nothing was read. Next: key=bytes"
        ) from error


def _decoded(values: serde.Serde[Any], _: Any, data: bytes) -> Any:
    """Read a value of any version as one of the current one, because only the service has its upcasters."""
    plain = isinstance(values, serde.MsgPack | serde.Json | serde.Text | serde.Integer)
    return values.decode(data[2:] if plain and versioned_values.version_of(data) > 1 else data)
