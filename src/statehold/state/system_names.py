"""The names of system tables, which statehold declares itself (`statehold.bound.system_tables`).

The name of a user's table is an attribute's and has no dot. The names of system tables begin with `statehold.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from statehold.state.partition_table import PartitionTable

PREFIX: Final = "statehold."
#: the partition's own time: {"now": milliseconds}
CLOCK: Final = f"{PREFIX}clock"
#: timers by id
TIMERS: Final = f"{PREFIX}timers"
#: prefix before the name of a table with a ttl: when each of its keys expires
EXPIRY: Final = f"{PREFIX}expiry."
#: of the partition's durable calls: {"requested": how many, "answered": offset of the newest answer}
CALLS: Final = f"{PREFIX}calls"


def by_default_name(tables: Mapping[str, PartitionTable[Any, Any]]) -> dict[str, PartitionTable[Any, Any]]:
    """Return the same tables; system tables by the names above, whatever `Handler.system_prefix` is."""
    return {default_name(name): table for name, table in tables.items()}


def default_name(name: str) -> str:
    """Return a table's name. A name with a dot is a system table's, and gets the prefix above."""
    return f"{PREFIX}{local_name(name)}" if "." in name else name


def owner(name: str) -> str:
    """Return the table whose keys this one repeats; the name itself for any other table."""
    default = default_name(name)
    return default.removeprefix(EXPIRY) if default.startswith(EXPIRY) else name


def local_name(name: str) -> str:
    return name.partition(".")[2]
