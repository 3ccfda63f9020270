"""What of records that failed belongs to a partition, and keeps its state from being dealt out to others."""

from __future__ import annotations

from statehold.admin.initial_commit import control_position
from statehold.admin.state.stopped_service import Bench, Found
from statehold.messages.dead_letter import PARKED, SETTLED
from statehold.tables.system import by_default_name


def unsettled(bench: Bench, found: Found, partition: int) -> str:
    """In words, '' where there is nothing.

    Letters and retry topics are those of the input's partition, and the commands that settle letters go there.
    """
    names, mark, tables = bench.names, found.mark, by_default_name(found.state.tables)
    if PARKED in tables and (keys := len(tables[PARKED].stored)):
        return f"partition {partition}: {keys} key(s) wait for dead letters (`statehold dlq list`)"
    for topic, position in mark.positions.items():
        if names.is_for_retries(topic) and (count := _records(bench, topic, partition, position)):
            return f"partition {partition}: {count} record(s) on {topic} are tried later (`statehold lag`)"
    if SETTLED in tables and tables[SETTLED].stored:
        asked = control_position(bench.admin, names, partition).get(names.control, 0)
        waiting = asked - mark.positions.get(names.control, 0)
        return f"partition {partition}: {waiting} command(s) wait in {names.control}" if waiting > 0 else ""
    return ""


def _records(bench: Bench, topic: str, partition: int, position: int) -> int:
    """Each of them has a marker beside it, so they are counted one by one."""
    if bench.admin.describe([topic])[topic] is None:
        return 0
    start, end = bench.bounds(topic, partition)
    reader = bench.reader()
    try:
        return sum(map(len, reader.read(topic, partition, max(start, position), end)))
    finally:
        reader.close()
