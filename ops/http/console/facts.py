"""The console's quick pages: the settings in force, the next timers, durable calls, and the explanation of an error."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

from statehold.api.call import PendingCall
from statehold.api.timer import Timer
from statehold.config.effective import listed
from statehold.ops.explain.entries import entries
from statehold.ops.explain.text import for_console
from statehold.service import Service
from statehold.state.kinds.calls import CallTable
from statehold.state.partition_table import PartitionTable
from statehold.state.system_names import TIMERS, default_name
from statehold.worker.replicas.queries import Committed

#: most timers or calls that are listed, and most that are read for it in one partition
_LISTED: Final = 100
_READ: Final = 20_000


def configuration(service: Service) -> list[dict[str, Any]]:
    """Return each setting in force; secrets are redacted."""
    return [{"key": each.key, "value": each.value, "changed": each.changed} for each in listed(service.settings)]


def explanation(error: str) -> dict[str, str]:
    """Return the parts of an error's explanation by their titles, such as `Meaning`; none for an unknown error."""
    found = entries().get(error)
    return for_console(found) if found is not None and found.kind == "error" else {}


def timers(service: Service) -> dict[str, Any]:
    """Return the next timers of the partitions that are live here, and how many each partition has.

    A partition with more than 20,000 timers is counted only.

    :raises Busy: commits come too fast to read between them.
    """
    overview = service.overview
    states = overview.committed() if overview is not None else {}
    counts, rows = {}, []
    for partition, committed in states.items():
        name = next((name for name in committed.tables if default_name(name) == TIMERS), None)
        if name is not None:
            counts[partition], found = _next(committed, name)
            rows += [{"partition": partition, "id": each.id, "due": each.due / 1000} for each in found]
    return {"counts": counts, "rows": heapq.nsmallest(_LISTED, rows, key=lambda row: row["due"])}


def _next(committed: Committed, name: str) -> tuple[int, list[Timer]]:
    (count, stored), _ = committed.read(partial(_stored, name))
    decode = committed.tables[name].decode
    return count, heapq.nsmallest(_LISTED, map(decode, stored), key=lambda timer: timer.due)


def _stored(name: str, tables: Mapping[str, PartitionTable[Any, Any]]) -> tuple[int, list[bytes]]:
    stored = tables[name].stored
    return len(stored), list(stored.values()) if len(stored) <= _READ else []


def calls(service: Service) -> dict[str, Any]:
    """Return the calls of the partitions that are live here, dead ones first, then the oldest; without their arguments.

    Of each `Call` and partition the first 20,000 are looked at. `counts`: how many there are, by partition and `Call`.

    :raises Busy: commits come too fast to read between them.
    """
    overview = service.overview
    states = overview.committed() if overview is not None else {}
    counts: dict[int, dict[str, int]] = {}
    rows: list[dict[str, Any]] = []
    for partition, committed in states.items():
        for name, table in committed.tables.items():
            if isinstance(table, CallTable):
                (count, stored), _ = committed.read(partial(_first, name))
                counts.setdefault(partition, {})[name] = count
                rows += [_call(partition, name, key, table.decode(data)) for key, data in stored]
    return {"counts": counts, "rows": heapq.nsmallest(_LISTED, rows, key=lambda row: (not row["error"], row["time"]))}


def _first(name: str, tables: Mapping[str, PartitionTable[Any, Any]]) -> tuple[int, list[tuple[str, bytes]]]:
    stored = tables[name].stored
    return len(stored), list(islice(stored.items(), _READ))


def _call(partition: int, name: str, id: str, row: PendingCall[Any]) -> dict[str, Any]:
    return {
        "id": id,
        "call": name,
        "partition": partition,
        "time": row.time / 1000,
        "attempts": row.attempts,
        "error": row.error,
    }
