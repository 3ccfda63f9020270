"""Tables that the framework declares itself, under names that no user's table can take.

What a feature has to remember (timers, what expires when) is an ordinary table of the partition, declared only where
the feature is used: deltas, fulls, the digest, compaction, restore, replay, rollback, export and surgery hold for it as
for any other. A user's table is named by an attribute, which has no dot; ours begin with `statehold.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from statehold.errors import UsageError
from statehold.messages.dead_letter import letter_tables
from statehold.table import Table
from statehold.tables.clock import ClockTable
from statehold.tables.due_index import DueTable
from statehold.tables.timers import TimerTable

if TYPE_CHECKING:
    from statehold.handler import Handler

PREFIX: Final = "statehold."
#: the partition's own time: {"now": milliseconds}
CLOCK: Final = f"{PREFIX}clock"
#: timers by id
TIMERS: Final = f"{PREFIX}timers"
#: followed by the name of a table with a ttl: when each of its keys expires
EXPIRY: Final = f"{PREFIX}expiry."


def internal(kind: type[Handler[Any]], tables: dict[str, Table[Any, Any]]) -> dict[str, Table[Any, Any]]:
    """What a handler class with these tables needs beside them, by reserved name; nothing for one that uses nothing.

    :raises UsageError: a table has a reserved name, or what goes by the partition's time is to work on batches.
    """
    from statehold.handler import Handler

    reserved = [name for name in tables if "." in name]
    if reserved:
        raise UsageError(f"table {reserved[0]!r}: names with a dot are statehold's own")
    found: dict[str, Table[Any, Any]] = {
        f"{EXPIRY}{name}": DueTable(key=table.key_type, value=int) for name, table in tables.items() if table.ttl
    }
    if kind.on_timer is not Handler.on_timer:
        found[TIMERS] = TimerTable()
    timed = bool(found) or any(isinstance(table, DueTable) for table in tables.values())
    if timed and kind.on_batch is not Handler.on_batch:
        raise UsageError(
            f"{kind.__name__} has on_batch, and timers, a Dedupe or a table with a ttl: time passes from record to "
            f"record, so these need on_record"
        )
    if timed:
        found[CLOCK] = ClockTable()
    found |= letter_tables(kind)
    found = {f"{kind.system_prefix}{_local(name)}": table for name, table in found.items()}
    for name, table in found.items():
        table.name = name
    return found


def by_default_name(tables: Mapping[str, Table[Any, Any]]) -> dict[str, Table[Any, Any]]:
    """The same tables, the framework's own by the names above, whatever `Handler.system_prefix` says."""
    return {default_name(name): table for name, table in tables.items()}


def default_name(name: str) -> str:
    """A table's name; a name with a dot is one of the framework's own, and gets the prefix above."""
    return f"{PREFIX}{_local(name)}" if "." in name else name


def owner(name: str) -> str:
    """The table whose keys this one repeats; its own name for any other."""
    default = default_name(name)
    return default.removeprefix(EXPIRY) if default.startswith(EXPIRY) else name


def _local(name: str) -> str:
    return name.partition(".")[2]
