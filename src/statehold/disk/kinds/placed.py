"""Which tables of a handler are on disk, and the tables of one partition."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from statehold.api.handler import Handler
from statehold.bound.attributes import bound_tables
from statehold.disk.dated import DueDiskTable
from statehold.disk.keys import key_codec
from statehold.disk.kinds.joins import JoinDiskTable
from statehold.disk.kinds.sessions import SessionDiskTable
from statehold.disk.port import PartitionStore
from statehold.disk.tables import DecodedBudget, DiskTable, SortedDiskTable
from statehold.state.kinds.calls import CallTable
from statehold.state.kinds.due_index import DueTable
from statehold.state.kinds.joins import JoinTable
from statehold.state.kinds.replies import RepliesTable
from statehold.state.kinds.sorted import SortedTable
from statehold.state.kinds.ttl import ExpiringTable
from statehold.state.kinds.windows import SessionTable
from statehold.state.partition_table import PartitionTable
from statehold.state.system_names import owner

#: they know their keys by an index in memory
_IN_MEMORY: Final = (CallTable, RepliesTable)


@cache
def _on_disk(kind: Any) -> type[DiskTable[Any, Any]]:
    """Return the class of a table on disk for the class of a table in memory."""
    base: type[DiskTable[Any, Any]] = DiskTable
    if issubclass(kind, SessionTable):
        base = SessionDiskTable
    elif issubclass(kind, JoinTable):
        base = JoinDiskTable
    elif issubclass(kind, DueTable):
        base = DueDiskTable
    elif issubclass(kind, SortedTable):
        base = SortedDiskTable
    return base if issubclass(base, kind) else type(kind.__name__, (kind, base), {})


def placed_on_disk(kind: type[Handler[Any]], default: str) -> frozenset[str]:
    """Return the stored names of a handler's tables on disk; `default` is `state.storage`.

    With the default `disk` those that cannot be there stay in memory. When keys expire is where the keys are.
    """
    tables = bound_tables(kind, False)
    own = {table.name for table in tables if "." not in table.name and _is_on_disk(table, default)}
    return frozenset(table.name for table in tables if owner(table.name) in own)


def _is_on_disk(table: PartitionTable[Any, Any], default: str) -> bool:
    if table.storage:
        return table.storage == "disk"
    return default == "disk" and can_be_on_disk(table)


def can_be_on_disk(table: PartitionTable[Any, Any]) -> bool:
    """Return whether a table of this kind, with keys of this type, can be on disk."""
    return not isinstance(table, _IN_MEMORY) and key_codec(table.key_type) is not None


def fresh_tables(
    kind: type[Handler[Any]], on_disk: frozenset[str], store: PartitionStore, budget: DecodedBudget, *, traced: bool
) -> list[PartitionTable[Any, Any]]:
    """Return the tables of one partition: those on disk with what the files hold, the others empty."""
    tables = []
    for declared in bound_tables(kind, traced):
        table = declared.fresh()
        if table.name in on_disk:
            codec = key_codec(table.key_type)
            assert codec is not None
            kind_of_table: Any = type(table)
            table.__class__ = _on_disk(kind_of_table)
            assert isinstance(table, DiskTable)
            if isinstance(table, ExpiringTable) and not table.whole_keys:
                table.whole_keys = "table with ttl"
            table.attach(store, codec, budget)
        tables.append(table)
    return tables
