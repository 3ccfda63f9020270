"""The declaration of a sink, with what a handler may call."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from statehold.api.declaration import Declaration
from statehold.errors import UsageError

V = TypeVar("V")


@dataclasses.dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a `Sink` declares."""

    table: str
    value_type: Any
    key: tuple[str, ...]
    columns: tuple[str, ...]


class Sink(Declaration, Generic[V]):
    """Declares a database table that a `Handler` writes to with `self.<name>.put` and `.delete`.

    `value` is a msgspec.Struct, a dataclass or a NamedTuple whose fields are columns of the table. `key` names the
    columns of the unique index by which a row is replaced. Use it on the partition's thread only.

    :raises UsageError: `key` is not among the fields of `value`.
    """

    def __init__(self, table: str, *, value: type[V], key: str | Sequence[str]) -> None:
        names = (key,) if isinstance(key, str) else tuple(key)
        columns = _fields(value)
        if not names or any(name not in columns for name in names):
            raise UsageError(f"Sink({table!r}): its key {names} is not among the fields of {value.__name__}")
        self._options = SinkOptions(table, value, names, columns)

    def put(self, row: V) -> None:
        """Insert the row, or replace the row with its key, in the record's transaction. Ignored in a replay.

        :raises UsageError: the row has another type than the sink.
        """
        raise self._unbound()

    def delete(self, *key: Any) -> None:
        """Delete the row with this key, if it exists; give the values in the order of the sink's `key`.

        :raises UsageError: the number of values differs from the key's.
        """
        raise self._unbound()


def _fields(kind: type[Any]) -> tuple[str, ...]:
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    if names is None and dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    if not names:
        raise UsageError(f"a Sink's value must be a msgspec.Struct, a dataclass or a NamedTuple, not {kind!r}")
    return tuple(names)
