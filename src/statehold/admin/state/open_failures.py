"""Finds a partition's unresolved failures, because its state cannot be redistributed while there are any."""

from __future__ import annotations

from contextlib import closing

from statehold.admin.initial_commit import control_position
from statehold.admin.state.stopped_service import LastState, StoppedService
from statehold.messages.dead_letter import BLOCKED_KEYS, RESOLVED
from statehold.state.kinds.calls import CallTable
from statehold.state.system_names import by_default_name


def unresolved_failures(stopped: StoppedService, found: LastState, partition: int) -> str:
    """Describe dead letters, calls, retries and commands that are pending for the partition; '' without any.

    They refer to the partition by its number, so a redistribution would separate them from their keys.
    """
    names, commit_record, tables = stopped.names, found.commit_record, by_default_name(found.state.tables)
    if BLOCKED_KEYS in tables and (keys := len(tables[BLOCKED_KEYS].stored)):
        return f"partition {partition}: {keys} key(s) are blocked by dead letters (`statehold dlq list`)"
    for name, table in tables.items():
        if isinstance(table, CallTable) and (calls := len(table.stored)):
            return f"partition {partition}: {calls} call(s) of {name!r} are pending or dead (`statehold status`)"
    for topic, position in commit_record.positions.items():
        if names.is_for_retries(topic) and (count := _records(stopped, topic, partition, position)):
            return f"partition {partition}: {count} record(s) are pending on {topic} (`statehold lag`)"
    if RESOLVED in tables and tables[RESOLVED].stored:
        asked = control_position(stopped.admin, names, partition)
        waiting = asked - commit_record.positions.get(names.control, 0)
        return f"partition {partition}: {waiting} command(s) are pending on {names.control}" if waiting > 0 else ""
    return ""


def _records(stopped: StoppedService, topic: str, partition: int, position: int) -> int:
    """Count records one by one, because offsets also count transaction markers."""
    if stopped.admin.describe([topic])[topic] is None:
        return 0
    start, end = stopped.bounds(topic, partition)
    with closing(stopped.reader()) as reader:
        return sum(map(len, reader.read(topic, partition, max(start, position), end)))
