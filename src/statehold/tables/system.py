"""Tables that the framework declares itself, under names that no user's table can take.

What a feature has to remember (timers, what expires when) is an ordinary table of the partition, declared only where
the feature is used: deltas, fulls, the digest, compaction, restore, replay, rollback, export and surgery hold for it as
for any other. A user's table is named by an attribute, which has no dot; ours begin with `statehold.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from statehold.table import Table

PREFIX: Final = "statehold."
#: the partition's own time: {"now": milliseconds}
CLOCK: Final = f"{PREFIX}clock"
#: timers by id
TIMERS: Final = f"{PREFIX}timers"
#: followed by the name of a table with a ttl: when each of its keys expires
EXPIRY: Final = f"{PREFIX}expiry."


def by_default_name(tables: Mapping[str, Table[Any, Any]]) -> dict[str, Table[Any, Any]]:
    """The same tables, the framework's own by the names above, whatever `Handler.system_prefix` says."""
    return {default_name(name): table for name, table in tables.items()}


def default_name(name: str) -> str:
    """A table's name; a name with a dot is one of the framework's own, and gets the prefix above."""
    return f"{PREFIX}{local_name(name)}" if "." in name else name


def owner(name: str) -> str:
    """The table whose keys this one repeats; its own name for any other."""
    default = default_name(name)
    return default.removeprefix(EXPIRY) if default.startswith(EXPIRY) else name


def local_name(name: str) -> str:
    return name.partition(".")[2]
