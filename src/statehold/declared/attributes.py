"""The tables, outputs and sinks that a handler class declares; the results are cached, so do not modify them."""

from __future__ import annotations

from typing import Any

from statehold.common.declarations import declarations, once_per_class
from statehold.declared.system_tables import system_tables
from statehold.handler import Handler
from statehold.output import Output
from statehold.sink import Sink
from statehold.table import Table
from statehold.tables.binding import bind


@once_per_class
def declared(kind: type[Handler[Any]]) -> tuple[dict[str, Table[Any, Any]], dict[str, Output[Any]]]:
    """Return the tables and outputs that a handler class declares, by attribute name, base classes first.

    The system tables that statehold needs for it follow its own (`statehold.declared.system_tables`).
    """
    tables = declarations(kind, Table)
    return tables | system_tables(kind, tables), declarations(kind, Output)


@once_per_class
def bound_tables(kind: type[Handler[Any]], traced: bool) -> tuple[Table[Any, Any], ...]:
    """Return one table of each declaration. Every partition gets a `fresh` copy of it, as `tables.binding.bind` does.

    `traced`: the tables catch values that are changed in place.
    """
    return tuple(bind(table, traced=traced) for table in declared(kind)[0].values())


@once_per_class
def sinks_of(kind: type[Handler[Any]]) -> dict[str, Sink[Any]]:
    """Return the sinks that a handler class declares, by attribute name, base classes first."""
    return declarations(kind, Sink)


@once_per_class
def schemas(kind: type[Handler[Any]]) -> dict[str, int]:
    """Return the version of each table."""
    return {name: table.version for name, table in declared(kind)[0].items()}
