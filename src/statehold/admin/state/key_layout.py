"""Which key belongs to which of N partitions, and a state dealt out anew by that. No Kafka in here."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from statehold.common.partitioner import murmur2
from statehold.errors import ToolRefused, UsageError
from statehold.messages.dead_letter import SETTLED
from statehold.snapshot.format.digest import MODULUS, table_digest
from statehold.snapshot.state import State
from statehold.table import Changes, Table
from statehold.tables.system import CLOCK, TIMERS, default_name, owner
from statehold.tables.timers import Timer

#: (key of the input record, number of partitions) -> partition
Partitioner = Callable[[bytes, int], int]
#: (table key, value) -> key of the input record that the entry belongs to
KeyOf = Callable[[Any, Any], bytes | str]


#: keys of one table that are dealt at once
_PIECE: Final = 1000


def crc32(key: bytes, partitions: int) -> int:
    """Where librdkafka's own default (consistent_random) puts a key."""
    return zlib.crc32(key) % partitions


PARTITIONERS: Final[dict[str, Partitioner]] = {"murmur2": murmur2, "crc32": crc32}


def leave_own(state: State) -> None:
    """What is a partition's own goes nowhere: its time, which begins anew with the next record, and the offsets of
    letters that were settled, which nobody asks for again (`unsettled`).
    """
    for name, table in state.tables.items():
        if default_name(name) in (CLOCK, SETTLED) and table.stored:
            state.digest = (state.digest - table_digest(name, list(table.stored), table.stored.values())) % MODULUS
            table.stored.clear()


class Layout:
    """How the producers place keys, and how a table's key tells the key of its input records."""

    def __init__(
        self, partitioner: Partitioner, keys: Mapping[str, KeyOf], tables: Mapping[str, Table[Any, Any]]
    ) -> None:
        """:raises UsageError: a table that is not there, or one whose keys do not tell by themselves."""
        unknown = sorted(set(keys) - set(tables))
        if unknown:
            raise UsageError(f"no table {unknown[0]!r}; there are: {', '.join(sorted(tables)) or 'none'}")
        for name, table in tables.items():
            if name not in keys and table.key_type not in (str, bytes) and "." not in name:
                kind = getattr(table.key_type, "__name__", table.key_type)
                raise UsageError(
                    f"table {name!r} has keys of type {kind}: which record key do they belong to? Say it with "
                    f"--key {name}=MODULE:FUNCTION, a function (key, value) -> record key"
                )
        self._partitioner, self._keys, self._tables = partitioner, keys, tables

    def partition(self, table: str, key: Any, data: bytes, partitions: int) -> int:
        """:raises UsageError: the user's function raised, or gave no key."""
        function = self._keys.get(table)
        if default_name(table) == TIMERS:
            timer: Timer = self._tables[table].decode(data)
            record_key: Any = timer.record_key
        elif function is None:
            record_key = key
        else:
            try:
                record_key = function(key, self._tables[table].decode(data))
            except Exception as error:  # the user's function may raise anything
                raise UsageError(f"table {table!r}, key {key!r}: {type(error).__name__}: {error}") from error
        if isinstance(record_key, str):
            record_key = record_key.encode()
        if not isinstance(record_key, bytes):
            raise UsageError(f"table {table!r}, key {key!r}: {record_key!r} is no record key; give bytes or str")
        return self._partitioner(record_key, partitions)

    def of_record(self, key: bytes, partitions: int) -> int:
        return self._partitioner(key, partitions)

    def deal(self, state: State, here: int, before: int, to: int) -> Iterator[tuple[int, Changes]]:
        """All of the state of partition `here` of `before`, in pieces: to which of `to` partitions, and what.

        That every key lies where this layout would have put it among `before` partitions proves the layout.

        :raises ToolRefused: one does not.
        """
        for name, table in state.tables.items():
            dealt: list[Changes] = [Changes(name, [], []) for _ in range(to)]
            of = owner(name)
            owned = state.tables[of].stored
            for key, data in table.stored.items():
                about = owned.get(key, data)
                self._check(of, key, about, here, before)
                there = self.partition(of, key, about, to)
                piece = dealt[there]
                piece.keys.append(key)
                piece.values.append(data)
                if len(piece.keys) >= _PIECE:
                    yield there, piece
                    dealt[there] = Changes(name, [], [])
            yield from ((there, piece) for there, piece in enumerate(dealt) if piece.keys)

    def _check(self, table: str, key: Any, data: bytes, here: int, partitions: int) -> None:
        wanted = self.partition(table, key, data, partitions)
        if wanted != here:
            raise ToolRefused(
                f"table {table!r}, key {key!r} lies in partition {here}, by the given partitioner and keys its records "
                f"go to {wanted} of {partitions}: the producers place keys otherwise (--partitioner), or the table's "
                f"key is not the record's (--key {table}=MODULE:FUNCTION). Nothing was changed"
            )
