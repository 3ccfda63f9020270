"""Maps keys to partitions, and redistributes a state accordingly. Does not use Kafka."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from statehold.api.timer import Timer
from statehold.common.partitioner import Partitioner
from statehold.errors import ToolRefused, UsageError, class_and_text
from statehold.messages.dead_letter import RESOLVED
from statehold.state.digest import MODULUS, table_digest
from statehold.state.kinds.replies import RepliesTable
from statehold.state.partition_table import Changes, PartitionTable
from statehold.state.state import State
from statehold.state.system_names import CALLS, CLOCK, TIMERS, default_name, owner

#: (table key, value) -> key of the input record that the entry belongs to.
KeyOf = Callable[[Any, Any], bytes | str]


#: Keys of one table in one piece of a redistributed state.
_PIECE: Final = 1000


def drop_partition_data(state: State, tables: Collection[str] = (CLOCK, RESOLVED, CALLS)) -> None:
    """Remove the entries that belong to the partition rather than to a key.

    These are the partition's event time, which restarts with the next record, the places of resolved dead letters,
    and the numbers of durable calls, of which none is pending.
    """
    for name, table in state.tables.items():
        if default_name(name) in tables and table.stored:
            state.digest = (state.digest - table_digest(name, list(table.stored), table.stored.values())) % MODULUS
            table.stored.clear()


class KeyLayout:
    """Maps a table's entry to its record key, and the record key to its partition."""

    def __init__(
        self, partitioner: Partitioner, keys: Mapping[str, KeyOf], tables: Mapping[str, PartitionTable[Any, Any]]
    ) -> None:
        """:raises UsageError: a table does not exist, or its keys need a function that returns the record key."""
        unknown = sorted(set(keys) - set(tables))
        if unknown:
            raise UsageError(f"no table {unknown[0]!r}; there are: {', '.join(sorted(tables)) or 'none'}")
        for name, table in tables.items():
            of_key = table.key_type in (str, bytes) or isinstance(table, RepliesTable)
            if name not in keys and not of_key and "." not in name:
                kind = getattr(table.key_type, "__name__", table.key_type)
                raise UsageError(
                    f"table {name!r}: find the record key: the table's keys have type {kind}. Nothing was changed. "
                    f"Next: add --key {name}=MODULE:FUNCTION, a function (key, value) -> record key"
                )
        self._partitioner, self._keys, self._tables = partitioner, keys, tables

    def partition(self, table: str, key: Any, data: bytes, partitions: int) -> int:
        """Return the partition of an entry. :raises UsageError: the user's function failed or returned no key."""
        function = self._keys.get(table)
        if default_name(table) == TIMERS:
            timer: Timer = self._tables[table].decode(data)
            record_key: Any = timer.record_key
        elif isinstance(self._tables[table], RepliesTable):
            record_key = key[0]
        elif function is None:
            record_key = key
        else:
            try:
                record_key = function(key, self._tables[table].decode(data))
            except Exception as error:  # the user's function may raise anything
                raise UsageError(f"table {table!r}, key {key!r}: {class_and_text(error)}") from error
        if isinstance(record_key, str):
            record_key = record_key.encode()
        if not isinstance(record_key, bytes):
            raise UsageError(f"table {table!r}, key {key!r}: {record_key!r} is not a record key; return bytes or str")
        return self._partitioner(record_key, partitions)

    def of_record(self, key: bytes, partitions: int) -> int:
        """Return the partition of a record key."""
        return self._partitioner(key, partitions)

    def redistribute(self, state: State, here: int, before: int, to: int) -> Iterator[tuple[int, Changes]]:
        """Yield the state of partition `here` of `before` in pieces: (new partition of `to`, entries).

        Checks that this layout maps every key to `here` now, because a wrong layout would lose keys.

        :raises ToolRefused: it maps a key to another partition.
        """
        for name, table in state.tables.items():
            pieces: list[Changes] = [Changes(name, [], []) for _ in range(to)]
            of = owner(name)
            owned = state.tables[of].stored
            for key, data in table.stored.items():
                about = owned.get(key, data)
                self._check(of, key, about, here, before)
                there = self.partition(of, key, about, to)
                piece = pieces[there]
                piece.keys.append(key)
                piece.values.append(data)
                if len(piece.keys) >= _PIECE:
                    yield there, piece
                    pieces[there] = Changes(name, [], [])
            yield from ((there, piece) for there, piece in enumerate(pieces) if piece.keys)

    def _check(self, table: str, key: Any, data: bytes, here: int, partitions: int) -> None:
        wanted = self.partition(table, key, data, partitions)
        if wanted != here:
            raise ToolRefused(
                f"table {table!r}, key {key!r} is in partition {here}, but the given partitioner maps its records to "
                f"partition {wanted} of {partitions}. Nothing was changed. Next: choose the producers' partitioner "
                f"with --partitioner; or, if the table's key is not the record's key, add --key "
                f"{table}=MODULE:FUNCTION"
            )
