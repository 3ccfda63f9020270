"""Reads committed state of the partitions that are live in this process, for a client of the same program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from statehold.common.decoding import UNREADABLE, make_decoder
from statehold.common.partitioner import key_bytes
from statehold.errors import StateUnavailable
from statehold.runtime.introspection import Overview
from statehold.worker.replicas.queries import Busy, Tables


def read_here(
    overview: Callable[[], Overview | None], input: str, table: str, key: str | bytes | int, partition: int, after: int
) -> tuple[Any] | None:
    """Return the value of a key as a tuple of one, with None for an absent key.

    None: the owner has to be asked, because the partition is not live here, has not committed the record at the
    offset `after` of the input, or is committing now. The key is read as in a path of `/state`. Does not wait.

    :raises StateUnavailable: the key is of another type than the table's.
    """
    found = overview()
    committed = found.committed().get(partition) if found is not None else None
    if committed is None or table not in committed.tables:
        return None
    declared = committed.tables[table]
    wanted = _as_key(declared.key_type, key, table)
    try:
        data, record = committed.read(partial(_stored, table, wanted), tries=1)
    except Busy:
        return None
    if record.positions.get(input, 0) <= after:
        return None
    return (None if data is None else declared.decoded(wanted, data),)


def _as_key(kind: Any, key: str | bytes | int, table: str) -> Any:
    """:raises StateUnavailable: it is no key of this type."""
    if type(key) is kind:
        return key
    data = key_bytes(key)
    try:
        if kind is bytes:
            return data
        return data.decode() if kind is str else make_decoder(msgspec.json.Decoder, kind).decode(data)
    except UNREADABLE as error:
        raise StateUnavailable(f"{table}[{key!r}]: no key of this table, {kind!r:.100}: {error}") from error


def _stored(table: str, key: Any, tables: Tables) -> bytes | None:
    return tables[table].stored.get(key)
