"""The tables, outputs and sinks that a handler class declares; the results are cached, so do not modify them."""

from __future__ import annotations

from typing import Any

from statehold.api.handler import Handler
from statehold.api.output import Output
from statehold.api.sink import Sink
from statehold.api.table import Dedupe, Retired, Table
from statehold.bound.output import PartitionOutput, partition_output
from statehold.bound.sink import PartitionSink
from statehold.bound.system_tables import system_tables
from statehold.bound.table import DECLARED, bind
from statehold.common.class_body import class_attributes, once_per_class
from statehold.errors import UsageError
from statehold.state.partition_table import PartitionTable, RetiredTable
from statehold.state.types.describe import table_type
from statehold.state.types.description import TableType


@once_per_class
def tables_and_outputs(
    kind: type[Handler[Any]],
) -> tuple[dict[str, PartitionTable[Any, Any]], dict[str, PartitionOutput[Any]]]:
    """Return a handler class's tables by stored name, and its outputs by attribute name, base classes first.

    The system tables that statehold needs for it follow its own (`statehold.bound.system_tables`).
    """
    outputs = {name: partition_output(output) for name, output in class_attributes(kind, Output).items()}
    return _tables(kind, traced=False), outputs


@once_per_class
def bound_tables(kind: type[Handler[Any]], traced: bool) -> tuple[PartitionTable[Any, Any], ...]:
    """Return one table of each declaration. Every partition gets a `fresh` copy of it.

    `traced`: the tables catch values that are changed in place.
    """
    return tuple((_tables(kind, traced=True) if traced else tables_and_outputs(kind)[0]).values())


def _tables(kind: type[Handler[Any]], *, traced: bool) -> dict[str, PartitionTable[Any, Any]]:
    found: dict[str, Table[Any, Any] | Dedupe[Any] | Retired[Any]] = class_attributes(kind, DECLARED)
    tables: dict[str, PartitionTable[Any, Any]] = {}
    for table in (bind(each, traced=traced) for each in found.values()):
        if (other := tables.get(table.name)) is not None:
            raise UsageError(f"tables {other.attribute!r} and {table.attribute!r} are both stored as {table.name!r}")
        tables[table.name] = table
    return tables | system_tables(kind, tables)


@once_per_class
def sinks_of(kind: type[Handler[Any]]) -> dict[str, PartitionSink[Any]]:
    """Return the sinks that a handler class declares, by attribute name, base classes first."""
    return {name: PartitionSink(sink) for name, sink in class_attributes(kind, Sink).items()}


@once_per_class
def schemas(kind: type[Handler[Any]]) -> dict[str, int]:
    """Return the version of each table; a retired one may have any."""
    tables = tables_and_outputs(kind)[0].items()
    return {name: table.version for name, table in tables if not isinstance(table, RetiredTable)}


@once_per_class
def table_types(kind: type[Handler[Any]]) -> dict[str, TableType]:
    """Return the types of each of the user's own tables; the names of system tables have a dot.

    A retired table has a type of its keys only.
    """
    own = {name: table for name, table in tables_and_outputs(kind)[0].items() if "." not in name}
    types = {name: table_type(name, table.key_type, table.serde) for name, table in own.items()}
    retired = {name: TableType(types[name].key, {}) for name, table in own.items() if isinstance(table, RetiredTable)}
    return types | retired
