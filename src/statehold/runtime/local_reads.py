"""Reads committed state of the partitions that are live in this process, for a client of the same program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from statehold.runtime.introspection import Overview
from statehold.worker.replicas.queries import Busy, Tables


def read_here(
    overview: Callable[[], Overview | None], input: str, table: str, key: str | bytes | int, partition: int, after: int
) -> tuple[Any] | None:
    """Return the value of a key as a tuple of one, with None for an absent key.

    None: the owner has to be asked, because the partition is not live here, or has not committed the record at the
    offset `after` of the input.
    """
    found = overview()
    committed = found.committed().get(partition) if found is not None else None
    if committed is None or table not in committed.tables:
        return None
    declared = committed.tables[table]
    wanted = key.encode() if declared.key_type is bytes and isinstance(key, str) else key
    try:
        data, record = committed.read(partial(_stored, table, wanted))
    except Busy:
        return None
    if record.positions.get(input, 0) <= after:
        return None
    return (None if data is None else declared.decoded(wanted, data),)


def _stored(table: str, key: Any, tables: Tables) -> bytes | None:
    return tables[table].stored.get(key)
