"""Applies a migration's edits on the executors, key by key."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from statehold.api.handler import HandlerFactory
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.topics import class_of
from statehold.snapshot.spark.fold.merge import Rows
from statehold.snapshot.spark.fold.newest import REPORT
from statehold.snapshot.state_edits import Counts, Edit, Edits, Patch

#: Keys that a patch adds to a partition: table, key (msgpack), value (as stored).
Born = Sequence[tuple[str, bytes, bytes]]
EDITED: Final = "edited"
packed = msgspec.msgpack.Encoder().encode


class Tally(msgspec.Struct, kw_only=True):
    """One task's edits of one partition, in the form of a report."""

    partition: int
    kind: str = EDITED
    counts: Counts = msgspec.field(default_factory=Counts)


decode_tally = msgspec.msgpack.Decoder(Tally).decode


class Editor:
    """Edits the rows of one partition. Executors must be able to import handler and functions."""

    def __init__(self, handler: HandlerFactory, functions: Mapping[str, Edit], patches: Sequence[Patch]) -> None:
        self.handler, self._functions, self._patches = handler, dict(functions), list(patches)

    def __call__(
        self, partitions: Sequence[int], born: Mapping[int, Born], task: int, rows: Iterable[Rows]
    ) -> Iterator[Rows]:
        """Yield the edited rows of the partition of this task, those that a patch adds, and a `Tally`."""
        tables, partition, counts = tables_of(self.handler), partitions[task], Counts()
        edits = Edits(self._functions, self._patches, tables)
        keys = {name: msgspec.msgpack.Decoder(table.key_type).decode for name, table in tables.items()}
        for _, table, packed_keys, values in rows:
            if table == REPORT:
                yield partition, table, packed_keys, values
                continue
            held: dict[bytes, bytes] = {}
            for key, data in zip(packed_keys, values, strict=True):
                after = edits.edited(table, keys[table](key), data, counts) if table in keys else data
                if after is not None:
                    held[key] = after
            counts.before, counts.after = counts.before + len(values), counts.after + len(held)
            if held:
                yield partition, table, list(held), list(held.values())
        for table, key, data in born[partition]:
            yield partition, table, [key], [data]
        yield partition, REPORT, [b""], [packed(Tally(partition=partition, counts=counts))]


def having(table: str, keys: Container[bytes], rows: Rows) -> Iterator[bytes]:
    """Yield those of the given msgpack keys that the rows hold."""
    if rows[1] == table:
        yield from (key for key in rows[2] if key in keys)


def tables_of(handler: HandlerFactory) -> dict[str, Any]:
    return tables_and_outputs(class_of(handler))[0]
