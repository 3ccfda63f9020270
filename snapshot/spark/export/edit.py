"""Applies a migration's edits on the executors, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from statehold.declared.attributes import declared
from statehold.handler import Handler
from statehold.snapshot.spark.fold.fold import BUCKETS
from statehold.snapshot.spark.fold.newest import REPORT
from statehold.snapshot.state_edits import Counts, Edit, Edits, Patch

HandlerOf = type[Handler[Any]] | Callable[[], Handler[Any]]
#: (partition, bucket, table, key, value).
Row = tuple[int, int, str, bytes, bytes]
EDITED: Final = "edited"
#: Bucket of the keys that a patch adds, after all others.
BORN: Final = BUCKETS
packed = msgspec.msgpack.Encoder().encode


class Tally(msgspec.Struct, kw_only=True):
    """One task's edits of one partition, in the form of a report."""

    partition: int
    kind: str = EDITED
    counts: Counts = msgspec.field(default_factory=Counts)


decode_tally = msgspec.msgpack.Decoder(Tally).decode


class Editor:
    """Function for `mapInArrow` over `source.FOLDED`. Executors must be able to import handler and functions."""

    def __init__(self, handler: HandlerOf, functions: Mapping[str, Edit], patches: Sequence[Patch]) -> None:
        self.handler, self._functions, self._patches = handler, dict(functions), list(patches)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = tables_of(self.handler)
        edits = Edits(self._functions, self._patches, tables)
        keys = {name: msgspec.msgpack.Decoder(table.key_type).decode for name, table in tables.items()}
        tallies: dict[int, Counts] = {}
        for batch in batches:
            rows = []
            for partition, bucket, table, key, data in _tuples(batch):
                if table == REPORT:
                    rows.append((partition, bucket, table, key, data))
                    continue
                counts = tallies.setdefault(partition, Counts())
                counts.before += 1
                after = edits.edited(table, keys[table](key), data, counts) if table in keys else data
                counts.after += after is not None
                if after is not None:
                    rows.append((partition, bucket, table, key, after))
            if rows:
                yield _batch(rows)
        if tallies:
            reports = [(p, 0, REPORT, b"", packed(Tally(partition=p, counts=c))) for p, c in sorted(tallies.items())]
            yield _batch(reports)


def tables_of(handler: HandlerOf) -> dict[str, Any]:
    return declared(handler if isinstance(handler, type) else type(handler()))[0]


def _tuples(batch: pa.RecordBatch) -> Iterator[Row]:
    columns = [batch.column(name).to_pylist() for name in ("partition", "bucket", "table", "key", "value")]
    return zip(*columns, strict=True)


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    kinds = (pa.int32(), pa.int32(), pa.string(), pa.binary(), pa.binary())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.record_batch(arrays, names=["partition", "bucket", "table", "key", "value"])
