"""Makes the table of one partition from its declaration."""

from __future__ import annotations

from typing import Any

from statehold.table import K, Table, V
from statehold.tables.copied import CopiedTable
from statehold.tables.sorted import SortedTable
from statehold.tables.traced import TracedTable
from statehold.tables.ttl import ExpiringTable


def bind(table: Table[K, V], *, traced: bool = False) -> Table[K, V]:
    """Return a new, empty table of this declaration; `traced` catches values that are changed in place."""
    kinds: list[type[Table[Any, Any]]] = []
    if traced:
        kinds.append(TracedTable)
    elif table.mutable:
        kinds.append(CopiedTable)
    if table.ttl:
        kinds.append(ExpiringTable)
    if table.sorted:
        kinds.append(SortedTable)
    return table.fresh(tuple(kinds))
