"""Makes the table of one partition from its declaration."""

from __future__ import annotations

from typing import Any, Final

from statehold.api.call import Call
from statehold.api.declaration import options_of
from statehold.api.joins import JoinBuffer
from statehold.api.output import Replies
from statehold.api.table import Dedupe, Retired, Table
from statehold.api.windows import Hopping, Session, Tumbling
from statehold.state.kinds.calls import CallTable
from statehold.state.kinds.copied import CopiedTable
from statehold.state.kinds.joins import JoinTable
from statehold.state.kinds.replies import RepliesTable
from statehold.state.kinds.sorted import SortedTable
from statehold.state.kinds.ttl import DedupeTable, ExpiringTable
from statehold.state.kinds.windows import HoppingTable, SessionTable
from statehold.state.partition_table import PartitionTable, RetiredTable, TracedTable

#: what a class body may declare as a table
DECLARED: Final = (Table, Dedupe, Retired)
_SHIPPED: Final = (Table, Dedupe, Tumbling, Hopping, Session, JoinBuffer, Call, Replies, Retired)


def bind(
    declaration: Table[Any, Any] | Dedupe[Any] | Retired[Any], *, traced: bool = False
) -> PartitionTable[Any, Any]:
    """Return a new, empty table of this declaration; `traced` catches values that are changed in place."""
    kinds = tuple(_kinds(declaration, traced=traced))
    kind = kinds[0] if len(kinds) == 1 else type("BoundTable", kinds, {})
    table: PartitionTable[Any, Any] = kind(declaration)
    own = type(declaration)
    if own not in _SHIPPED:  # the user's class may have methods of its own; its __init__ belongs to the declaration
        table.__class__ = type(own.__name__, (own, kind), {})
    return table


def _kinds(declaration: Table[Any, Any] | Dedupe[Any] | Retired[Any], *, traced: bool) -> list[Any]:
    """Return the classes with the behaviour of this declaration."""
    if isinstance(declaration, Dedupe):
        return [DedupeTable]  # its values are ints, so there is nothing to trace
    if isinstance(declaration, Replies):
        return [RepliesTable]  # only the engine writes its rows
    if isinstance(declaration, Retired):
        return [RetiredTable]
    options, kinds = options_of(declaration), list[Any]()
    if traced:
        kinds.append(TracedTable)
    elif options.mutable:
        kinds.append(CopiedTable)
    if options.ttl:
        kinds.append(ExpiringTable)
    if options.sorted:
        kinds.append(SortedTable)
    for base, kind in ((Session, SessionTable), (Hopping, HoppingTable), (JoinBuffer, JoinTable), (Call, CallTable)):
        if isinstance(declaration, base):
            kinds.append(kind)
    return kinds or [PartitionTable]
