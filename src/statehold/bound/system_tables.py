"""The tables that statehold declares for a handler class: each only where the handler uses its feature.

What a feature has to remember (timers, expiry times, blocked keys) is an ordinary table of the partition. So
snapshots, the digest, compaction, restore, replay and rollback hold for it as for any other table.
"""

from __future__ import annotations

from typing import Any

from statehold.api.handler import Handler
from statehold.api.table import Retired, Table
from statehold.bound.policies import sends_dead_letters
from statehold.bound.table import bind
from statehold.errors import UsageError
from statehold.messages.dead_letter import BLOCKED_KEYS, RESOLVED, BlockedKey
from statehold.state.kinds.calls import CallTable
from statehold.state.kinds.clock import ClockTable
from statehold.state.kinds.due_index import DueTable
from statehold.state.kinds.joins import JoinTable
from statehold.state.kinds.replies import RepliesTable
from statehold.state.kinds.timers import TimerTable
from statehold.state.kinds.windows import WindowTable
from statehold.state.partition_table import PartitionTable, RetiredTable
from statehold.state.system_names import CALLS, CLOCK, EXPIRY, TIMERS, local_name

Tables = dict[str, PartitionTable[Any, Any]]


def system_tables(kind: type[Handler[Any]], tables: Tables) -> Tables:
    """Return the system tables that a handler class with these tables needs, by reserved name.

    :raises UsageError: a table has a reserved name, a handler with on_batch uses the partition's time, one with windows
        has no on_window, or one with joins no on_unmatched that fits.
    """
    reserved = [name for name in tables if "." in name]
    if reserved:
        raise UsageError(f"table {reserved[0]!r}: names with a dot are statehold's own")
    found: Tables = {
        f"{EXPIRY}{name}": DueTable(Table(key=table.key_type, value=int)) for name, table in tables.items() if table.ttl
    }
    windows = [name for name, table in tables.items() if isinstance(table, WindowTable)]
    if windows and kind.on_window is Handler.on_window:
        raise UsageError(
            f"{kind.__name__} has windows ({', '.join(windows)}) and no on_window, so their values would be lost when "
            f"they close. Next: define on_window(self, name, key, start, end, value)"
        )
    if len(replies := [name for name, table in tables.items() if isinstance(table, RepliesTable)]) > 1:
        raise UsageError(
            f"{kind.__name__} declares Replies twice ({', '.join(replies)}). Next: declare one, with a union of their "
            f"types"
        )
    _check_joins(kind, {name: table for name, table in tables.items() if isinstance(table, JoinTable)})
    if kind.on_timer is not Handler.on_timer:
        found[TIMERS] = TimerTable()
    timed = bool(found) or any(isinstance(table, DueTable | JoinTable) for table in tables.values())
    if timed and kind.on_batch is not Handler.on_batch:
        raise UsageError(
            f"{kind.__name__} has on_batch, and timers, windows, joins, a Dedupe, Replies or a table with a ttl: time "
            f"passes from record to record, so these need on_record"
        )
    if timed:
        found[CLOCK] = ClockTable()
    found |= _retired_tables(tables, timed=timed)
    found |= _dead_letter_tables(kind)
    found |= _call_tables(kind, tables)
    found = {f"{kind.system_prefix}{local_name(name)}": table for name, table in found.items()}
    for name, table in found.items():
        table.name = table.attribute = name
    return found


def _retired_tables(tables: Tables, *, timed: bool) -> Tables:
    """Return the tables that may hold when keys of retired tables expire, and the time by which they did."""
    retired = {name: table for name, table in tables.items() if isinstance(table, RetiredTable)}
    found: Tables = {f"{EXPIRY}{name}": bind(Retired(key=table.key_type)) for name, table in retired.items()}
    if retired and not timed:
        found[CLOCK] = bind(Retired(key=str))
    return found


def _check_joins(kind: type[Handler[Any]], joins: dict[str, JoinTable[Any, Any, Any]]) -> None:
    """:raises UsageError: on_unmatched is missing, or would never be called."""
    reporting = [name for name, table in joins.items() if table.reported]
    if reporting and kind.on_unmatched is Handler.on_unmatched:
        raise UsageError(
            f"{kind.__name__} has left or outer joins ({', '.join(reporting)}) and no on_unmatched, so records without "
            f"a partner would be lost. Next: define on_unmatched(self, name, key, side, value, timestamp)"
        )
    if joins and not reporting and kind.on_unmatched is not Handler.on_unmatched:
        raise UsageError(
            f"{kind.__name__} has on_unmatched, and its joins ({', '.join(joins)}) are inner, so it would never be "
            f'called. Next: declare JoinBuffer(..., join="left") or join="outer", or remove on_unmatched'
        )


def _call_tables(kind: type[Handler[Any]], tables: Tables) -> Tables:
    """:raises UsageError: nothing would get the answers of a call, or the handler has on_batch."""
    calls = [table for table in tables.values() if isinstance(table, CallTable)]
    for table in calls:
        if not table.options.on_result:
            raise UsageError(
                f"{kind.__name__}.{table.attribute} is a Call without a method for its answers. Next: decorate one "
                f"with @{table.attribute}.on_result: def answered(self, done: CallResult[Argument, Result])"
            )
    if calls and kind.on_batch is not Handler.on_batch:
        raise UsageError(
            f"{kind.__name__} has on_batch and a Call ({calls[0].attribute}): a call is named after its record, and "
            f"on_batch has many. Next: define on_record"
        )
    return {CALLS: PartitionTable(Table(key=str, value=int))} if calls else {}


def _dead_letter_tables(kind: type[Handler[Any]]) -> Tables:
    if not kind.on_failure or not sends_dead_letters(kind):
        return {}
    return {
        BLOCKED_KEYS: PartitionTable(Table(key=bytes, value=BlockedKey)),
        RESOLVED: PartitionTable(Table(key=int, value=int)),
    }
