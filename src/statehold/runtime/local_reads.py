"""Reads committed state of the partitions that are live in this process, for a client of the same program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from statehold.api.record import key_bytes
from statehold.client.owner_reads import PartitionState
from statehold.client.rows import RowBounds, RowPage, StoppedHere, TableRow
from statehold.common.decoding import UNREADABLE, make_decoder
from statehold.common.names import Names
from statehold.errors import StateUnavailable, text_of
from statehold.runtime.introspection import Overview
from statehold.snapshot.format.records import CommitRecord
from statehold.state.partition_table import PartitionTable
from statehold.watch.position import WatchedTo
from statehold.worker.replicas.listing import KeyBounds, rows_within, several
from statehold.worker.replicas.queries import Busy, Committed
from statehold.worker.status import PartitionStatus


class LocalReads:
    """A `client.rows.LocalState`: partitions that are live here. Keys are read as in a path of `/state`. Any thread."""

    def __init__(self, overview: Callable[[], Overview | None], names: Names) -> None:
        self._overview, self._names, self._input = overview, names, names.input

    def values(self, table: str, keys: Sequence[Any], partition: int, after: int) -> list[Any] | None:
        """Return the values of keys, all of one commit, with None for an absent key.

        None: the owner has to be asked, because the partition is not live here, has not committed the record at the
        offset `after` of the input, or is committing now. Does not wait.

        :raises StateUnavailable: a key is of another type than the table's.
        """
        found = self._live(table, partition)
        if found is None:
            return None
        committed, declared = found
        wanted = [_as_key(declared.key_type, key, table) for key in keys]
        try:
            values, record = committed.read(partial(several, table, wanted), tries=1)
        except Busy:
            return None
        if not self._has_reached(record, after, partition):
            return None
        pairs = zip(wanted, values, strict=True)
        return [None if data is None else declared.decoded(key, data) for key, data in pairs]

    def page(
        self, table: str, bounds: RowBounds, key: Any, partition: int, after: int, limit: int
    ) -> RowPage[Any] | None:
        """Return the first rows within the bounds; None as for `values`. It reads all keys of the partition.

        Their keys are of the type `key`, as if another instance had answered.

        :raises StateUnavailable: a bound, or `key`, is of another type than the table's keys.
        """
        found = self._live(table, partition)
        if found is None:
            return None
        committed, declared = found
        kind = declared.key_type
        if bounds.prefix and kind not in (str, bytes):
            raise StateUnavailable(
                f"{table}: a prefix is for keys of str and bytes; those of this table are {kind!r:.100}"
            )
        prefix, start, end = (None if each is None else _as_key(kind, each, table) for each in bounds)
        try:
            listing = rows_within(committed, table, KeyBounds(prefix or None, start, end), limit)
        except Busy:
            return None
        if not self._has_reached(listing.since, after, partition):
            return None
        shown = [found if kind is key else _as_kind(key, table, found) for found, _ in listing.rows]
        rows = [
            TableRow(each, declared.decoded(found, data), partition)
            for each, (found, data) in zip(shown, listing.rows, strict=True)
        ]
        return RowPage(rows, listing.truncated, WatchedTo.of(listing.since).text(partition))

    def _live(self, table: str, partition: int) -> tuple[Committed, PartitionTable[Any, Any]] | None:
        overview = self._overview()
        committed = overview.committed().get(partition) if overview is not None else None
        if committed is None and overview is not None:
            self._require_running(overview.status(partition), table)
        if committed is None or table not in committed.tables:
            return None
        return committed, committed.tables[table]

    def _has_reached(self, record: CommitRecord, after: int, partition: int) -> bool:
        """Return whether a state includes the record at this offset.

        :raises StoppedHere: its partition is paused before it.
        """
        if record.positions.get(self._input, 0) > after:
            return True
        if record.paused is not None:
            paused = PartitionState(partition=partition, paused=record.paused.issuer)
            raise StoppedHere(
                f"partition {partition} {paused.why}, before offset {after}. Next: `{paused.command(self._names)}`"
            )
        return False

    def _require_running(self, status: PartitionStatus | None, table: str) -> None:
        """:raises StoppedHere: the partition has failed here. A stuck one may have another owner by now."""
        if status is None or status.stuck:
            return
        known = PartitionState(partition=status.partition, phase=status.phase, error=status.error)
        if known.failed:
            known.cause, known.since = status.cause, status.since
            raise StoppedHere(
                f"{table}: partition {status.partition} {known.why}. Next: `{known.command(self._names)}`, once the "
                f"cause is fixed"
            )


def _as_kind(kind: Any, table: str, key: Any) -> Any:
    """Return a table's key as a reader over HTTP gets it. :raises StateUnavailable: it is not of this type."""
    try:
        return make_decoder(msgspec.json.Decoder, kind).decode(msgspec.json.encode(key, enc_hook=str))
    except UNREADABLE as error:
        raise StateUnavailable(
            f"{table}[{key!r}]: the key is no {kind!r:.100}: {text_of(error)}. "
            f"Next: give `key` the type of the table's keys"
        ) from error


def _as_key(kind: Any, key: Any, table: str) -> Any:
    """:raises StateUnavailable: it is no key of this type."""
    if type(key) is kind:
        return key
    try:
        data = key_bytes(key) if isinstance(key, str | bytes | int) else msgspec.json.encode(key)
        if kind is bytes:
            return data
        return data.decode() if kind is str else make_decoder(msgspec.json.Decoder, kind).decode(data)
    except (*UNREADABLE, TypeError, ValueError) as error:
        raise StateUnavailable(f"{table}[{key!r}]: no key of this table, {kind!r:.100}: {text_of(error)}") from error
