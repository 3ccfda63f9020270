"""Lists committed rows of a partition by a prefix or a range of their keys, or by the keys themselves."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, takewhile
from typing import Any, Final, NamedTuple

from statehold.snapshot.format.records import CommitRecord
from statehold.state.partition_table import PartitionTable
from statehold.worker.replicas.queries import Busy, Committed, Tables

#: number of keys read before the workers get a turn, and its seconds
_SLICE: Final = 10_000
_BREATH: Final = 0.001
#: most stored bytes of the values of a listing: as JSON they are several times as long, and a client takes 64 MB
_LARGEST: Final = 8_000_000
#: most listings until one has a row that is still there
_LISTS: Final = 10


class KeyBounds(NamedTuple):
    """The keys that begin with `prefix`, from `start` on and below `end`; None: no bound."""

    prefix: Any = None
    start: Any = None
    end: Any = None

    def hold(self, key: Any) -> bool:
        return (
            (self.prefix is None or key.startswith(self.prefix))
            and (self.start is None or key >= self.start)
            and (self.end is None or key < self.end)
        )


class Listing(NamedTuple):
    """Stored rows of one commit, `commit_record`, in the order of their keys.

    `since` is the commit before the keys were read. A key that a later commit has added may be missing, so a reader
    that continues with the changes after `since` has every row.
    """

    rows: list[tuple[Any, bytes]]
    truncated: bool
    since: CommitRecord
    commit_record: CommitRecord


def rows_within(committed: Committed, table: str, bounds: KeyBounds, limit: int) -> Listing:
    """Return the first `limit` rows within the bounds, or fewer, up to some megabytes; a truncated listing has rows.

    It reads all keys of the partition, with breaths between.

    :raises Busy: commits came too fast.
    """
    for _ in range(_LISTS):
        _, since = committed.read(_nothing)
        keys = heapq.nsmallest(limit + 1, keys_within(committed.tables[table], bounds))
        values, commit_record = committed.read(partial(several, table, keys[:limit]))
        rows = _found(keys, values)
        fit = _fitting(rows)
        if rows or len(keys) <= limit:
            return Listing(rows[:fit], len(keys) > limit or fit < len(rows), since, commit_record)
    raise Busy  # all the rows that were listed were deleted before they were read


def rows_of(committed: Committed, table: str, keys: Sequence[Any]) -> Listing:
    """Return the rows of these keys, all of one commit. :raises Busy: commits came too fast."""
    values, commit_record = committed.read(partial(several, table, keys))
    return Listing(_found(keys, values), False, commit_record, commit_record)


def _found(keys: Sequence[Any], values: Sequence[bytes | None]) -> list[tuple[Any, bytes]]:
    return [(key, data) for key, data in zip(keys, values, strict=False) if data is not None]


def _fitting(rows: Sequence[tuple[Any, bytes]]) -> int:
    """Return how many rows an answer has room for, at least one."""
    sizes = accumulate(len(data) for _, data in rows)
    return max(1, sum(1 for _ in takewhile(_LARGEST.__ge__, sizes)))


def _nothing(_: Tables) -> None:
    """Read no row: only the commit record counts."""


def several(table: str, keys: Sequence[Any], tables: Tables) -> list[bytes | None]:
    stored = tables[table].stored
    return [stored.get(key) for key in keys]


def keys_within(table: PartitionTable[Any, Any], bounds: KeyBounds) -> Iterator[Any]:
    """Yield the keys as of the start."""
    for some in table.listed(_SLICE):
        yield from (key for key in some if bounds.hold(key) and key in table.stored)
        time.sleep(_BREATH)
