"""Converts keys and values to JSON, with the service's types if its code is available."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
import msgspec.inspect

from statehold.api.values import serde, versioned_values
from statehold.common.decoding import UNREADABLE, type_info
from statehold.errors import class_and_text
from statehold.state.partition_table import PartitionTable


class Typed:
    """Converts stored values to JSON types. Without tables it decodes every value as plain msgpack."""

    def __init__(self, tables: Mapping[str, PartitionTable[Any, Any]] | None = None) -> None:
        self._tables = {table.name: table for table in (tables or {}).values()}

    def value(self, table: str, stored: bytes | None) -> Any:
        """Convert a value; None stays None. Undecodable bytes are reported in the result, never raised."""
        if stored is None:
            return None
        known = self._tables.get(table)
        if known is None:
            return _untyped(stored)
        try:
            shown = builtins(known.decode(stored))
        except Exception as error:  # noqa: BLE001 - a user's decoder may raise anything
            return {"undecodable": class_and_text(error), "stored": _untyped(stored)}
        fields = _fields(known.value_type) if known.version == 1 else None
        if fields is not None and isinstance(plain := _untyped(stored), dict) and (lost := plain.keys() - fields):
            return {"undecodable": f"this code has no field {', '.join(sorted(lost))}", "stored": plain}
        return shown


@cache
def _fields(kind: Any) -> frozenset[str] | None:
    """Return the stored names of the fields of a class; None for any other type."""
    try:
        found = type_info(kind)
    except (TypeError, ValueError):
        return None  # only the table's own serde knows it
    if not isinstance(found, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
        return None
    return frozenset(field.encode_name for field in found.fields)


def message(codec: serde.Serde[Any] | None, data: bytes | None) -> Any:
    """Convert the value of an input or output record: with its serde, else as JSON, else as text, else as base64."""
    if data is None:
        return None
    if codec is not None:
        try:
            return builtins(codec.decode(data))
        except Exception as error:  # noqa: BLE001 - a user's decoder may raise anything
            return {"undecodable": class_and_text(error), "bytes": text(data)}
    try:
        return builtins(msgspec.json.decode(data))
    except UNREADABLE:
        return text(data)


def builtins(value: Any) -> Any:
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_foreign)


def _foreign(value: Any) -> Any:
    """Convert a value that msgspec does not know: a Pydantic model to its fields, any other to text."""
    dump = getattr(value, "model_dump", None)
    return str(value) if dump is None else dump(mode="json")


def text(data: bytes) -> Any:
    """Convert bytes to text, or to base64 if they are not printable."""
    try:
        shown = data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
    return shown if shown.isprintable() else {"base64": base64.b64encode(data).decode()}


def key(value: Any) -> Any:
    return text(value) if isinstance(value, bytes) else builtins(value)


def _untyped(stored: bytes) -> Any:
    body = stored[2:] if versioned_values.version_of(stored) > 1 else stored
    try:
        return builtins(msgspec.msgpack.decode(body))
    except (TypeError, *UNREADABLE):
        return text(stored)
