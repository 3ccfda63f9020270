"""Finds the columns that a table of the lake lacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pyspark.sql.types import ArrayType, DataType, MapType, StructType


class TypeChanged(Exception):
    """A column of the lake has another type than the service's table has now."""


class NewColumn(NamedTuple):
    """A column, or a field within one; both are written as SQL writes them."""

    path: str
    type: str


def added(stored: StructType, wanted: StructType, path: str = "") -> Iterator[NewColumn]:
    """Yield what `wanted` has and `stored` lacks, also within structs, arrays and maps.

    Columns that only `stored` has remain; the new rows have NULL there. Like Spark, names differ by more than case.

    :raises TypeChanged: a column has another type.
    """
    known = {field.name.lower(): field.dataType for field in stored}
    for field in wanted:
        name = f"{path}.`{field.name}`" if path else f"`{field.name}`"
        if field.name.lower() not in known:
            yield NewColumn(name, field.dataType.simpleString())
        else:
            yield from _within(known[field.name.lower()], field.dataType, name)


def _within(stored: DataType, wanted: DataType, path: str) -> Iterator[NewColumn]:
    match stored, wanted:
        case StructType(), StructType():
            yield from added(stored, wanted, path)
        case ArrayType(), ArrayType():
            yield from _within(stored.elementType, wanted.elementType, f"{path}.element")
        case MapType(), MapType() if stored.keyType.simpleString() == wanted.keyType.simpleString():
            yield from _within(stored.valueType, wanted.valueType, f"{path}.value")
        case _ if stored.simpleString() != wanted.simpleString():
            raise TypeChanged(
                f"column {path} is {stored.simpleString()} in the lake, and the service's table has "
                f"{wanted.simpleString()} now. Nothing was written. Next: choose a new table of the lake with --into"
            )
