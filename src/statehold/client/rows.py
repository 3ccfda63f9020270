"""Reads of many keys: which partition is asked for which, and what its answers are together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import quote

import msgspec

from statehold.client.arguments import checked_age, no_receipt
from statehold.client.owner_reads import OwnerReads, RowsAnswer, key_text
from statehold.client.receipt import Receipt
from statehold.common.partitioner import murmur2
from statehold.errors import StateUnavailable, UsageError
from statehold.watch.changes import as_prefix

T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)
#: of a type of keys that tables have
Key = Any

#: most keys of one request to an owner
MOST_KEYS: Final = 100
#: most characters of them in its path
_CHARACTERS: Final = 2_000
#: most rows of a page
MOST_ROWS: Final = 1000


class TableRow(msgspec.Struct, Generic[V_co], frozen=True):
    """A committed row of a table."""

    key: Any
    value: V_co
    partition: int


class RowPage(msgspec.Struct, Generic[V_co], frozen=True):
    """Rows in the order of their keys; those of a partition are of one commit.

    `truncated`: there are more; ask again with `start` behind the last key. A truncated page may have fewer rows than
    `limit`. `position` is where a watch continues: these rows and the changes after it are the table. Of several pages
    take that of the first one.
    """

    rows: list[TableRow[V_co]]
    truncated: bool
    position: str


class LocalState(Protocol):
    """Reads the partitions that are live in this process. Each method returns None if the owner has to be asked."""

    def values(self, table: str, keys: Sequence[Key], partition: int, after: int) -> list[Any] | None:
        """Return the values of keys, all of one commit, None for an absent key; look once, without a wait.

        `after`: the offset of a record that the state must include, or -1.
        """
        ...

    def page(
        self, table: str, bounds: RowBounds, key: Any, partition: int, after: int, limit: int
    ) -> RowPage[Any] | None:
        """Return the first rows within the bounds, with keys of the type `key`. It reads all keys of the partition."""
        ...


class StoppedHere(Exception):
    """A `LocalState` owns the partition, which has failed or is paused; the text says why."""


def unless_stopped(read: Callable[[], T | None], max_age: float) -> T | None:
    """Return what a `LocalState` reads; None also if the partition is stopped, and a standby replica may answer.

    :raises StateUnavailable: it is stopped, and no replica may answer.
    """
    try:
        return read()
    except StoppedHere as stopped:
        if max_age > 0:
            return None
        raise StateUnavailable(str(stopped)) from None


class RowBounds(NamedTuple):
    """Keys that begin with `prefix`, from `start` on and below `end`; None: no bound."""

    prefix: str | bytes | None
    start: Key
    end: Key

    def fields(self) -> dict[str, str]:
        """Return the fields of a query. A prefix of bytes is a range there, because a query is text."""
        prefix, start, end = self
        found = {"start": _in_query(start), "end": _in_query(end)}
        if isinstance(prefix, bytes):
            found = {"start": _in_query(prefix), "end": _in_query(_behind(prefix))}
        elif prefix:
            found["prefix"] = prefix
        return {name: value for name, value in found.items() if value is not None}


class ManyReads:
    """Divides reads among partitions. Each job asks one partition, and blocks. Any thread."""

    def __init__(self, owners: OwnerReads, input: str, key: Callable[[Any], Any], here: LocalState | None) -> None:
        """`key` encodes a key as those of the records are."""
        self._owners, self._input, self._key, self._here = owners, input, key, here

    def of_keys(
        self,
        table: str,
        keys: Iterable[Key],
        kind: Any,
        after: Iterable[Receipt],
        max_age: float,
        count: int,
        until: float,
    ) -> list[Callable[[], dict[Any, Any]]]:
        """Return jobs whose results together are the values of the keys that the table has."""
        max_age, offsets, homes = checked_age(max_age), self._offsets(after), dict[int, list[Key]]()
        for key in dict.fromkeys(keys):
            homes.setdefault(murmur2(self._key(key), count), []).append(key)
        return [
            partial(self._values, table, some, kind, home, offsets.get(home, -1), max_age, until)
            for home, wanted in homes.items()
            for some in _pieces(wanted)
        ]

    def of_range(
        self,
        table: str,
        bounds: RowBounds,
        kinds: tuple[Any, Any],
        limit: int,
        after: Iterable[Receipt],
        max_age: float,
        count: int,
        until: float,
    ) -> list[Callable[[], RowPage[Any]]]:
        """Return jobs, each for the rows of one partition; `page_of` puts their results together.

        `kinds`: the types of key and value.
        """
        bounds = bounds._replace(prefix=as_prefix(kinds[0], bounds.prefix, table))
        if isinstance(bounds.prefix, bytes) and (bounds.start, bounds.end) != (None, None):
            raise UsageError(f"{table}: a prefix of bytes together with start or end. Nothing was read")
        if bounds.end in ("", b""):
            raise UsageError(f"{table}: end={bounds.end!r}: no key is below it. Nothing was read. Next: leave it out")
        if not 1 <= limit <= MOST_ROWS:
            raise UsageError(f"limit={limit}: a page has 1 to {MOST_ROWS} rows. Nothing was read")
        max_age, offsets = checked_age(max_age), self._offsets(after)
        return [
            partial(self._rows, table, bounds, kinds, limit, home, offsets.get(home, -1), max_age, until)
            for home in range(count)
        ]

    def _values(
        self, table: str, keys: list[Key], kind: Any, partition: int, after: int, max_age: float, until: float
    ) -> dict[Any, Any]:
        def here() -> dict[Any, Any] | None:
            here = self._here
            read = None if here is None else partial(here.values, table, keys, partition, after)
            found = None if read is None else unless_stopped(read, max_age)
            return None if found is None else {k: v for k, v in zip(keys, found, strict=True) if v is not None}

        def accept(answer: RowsAnswer) -> dict[Any, Any] | None:
            if not all(0 <= row.index < len(keys) for row in answer.rows):
                return None
            return {keys[row.index]: answer.decoded(kind, row.value) for row in answer.rows}

        fields = {"keys": ",".join(map(key_text, keys))}
        return self._owners.rows(table, fields, partition, after, max_age, until, here, accept)

    def _rows(
        self,
        table: str,
        bounds: RowBounds,
        kinds: tuple[Any, Any],
        limit: int,
        partition: int,
        after: int,
        max_age: float,
        until: float,
    ) -> RowPage[Any]:
        key, value = kinds

        def here() -> RowPage[Any] | None:
            here = self._here
            read = None if here is None else partial(here.page, table, bounds, key, partition, after, limit)
            return None if read is None else unless_stopped(read, max_age)

        def accept(answer: RowsAnswer) -> RowPage[Any]:
            rows = [
                TableRow(answer.decoded(key, row.key), answer.decoded(value, row.value), partition)
                for row in answer.rows
            ]
            return RowPage(rows, answer.truncated, answer.position(partition))

        fields = {**bounds.fields(), "limit": str(limit)}
        return self._owners.rows(table, fields, partition, after, max_age, until, here, accept)

    def _offsets(self, after: Iterable[Receipt]) -> dict[int, int]:
        """Return the highest offset of each partition. :raises UsageError: a receipt is of another input."""
        offsets: dict[int, int] = {}
        for each in after:
            if not isinstance(each, Receipt):
                raise no_receipt(each)
            if each.topic not in ("", self._input):
                raise UsageError(f"the receipt {each} is of {each.topic}, not of {self._input}. Nothing was read")
            offsets[each.partition] = max(each.offset, offsets.get(each.partition, -1))
        return offsets


def receipts(after: Receipt | Iterable[Receipt] | None) -> Iterable[Receipt]:
    if after is None:
        return ()
    if isinstance(given := cast("object", after), str):
        raise no_receipt(given)
    return (after,) if isinstance(after, Receipt) else after


def page_of(parts: Collection[RowPage[Any]], limit: int) -> RowPage[Any]:
    """Return the first rows of the pages of all partitions."""
    rows, truncated = first_rows([(part.rows, part.truncated) for part in parts], attrgetter("key"), limit)
    return RowPage(rows, truncated, ",".join(part.position for part in parts if part.position))


def first_rows(parts: Sequence[tuple[Sequence[T], bool]], key: Callable[[T], Any], limit: int) -> tuple[list[T], bool]:
    """Merge parts with rows in order, each with whether it is truncated; return the first rows, and the same for them.

    The result ends where the first truncated part ends: behind that the part may have rows that it has not listed.
    """
    rows = sorted(chain.from_iterable(some for some, _ in parts), key=key)
    end = min((key(some[-1]) for some, truncated in parts if truncated and some), default=None)
    found = [row for row in rows if end is None or key(row) <= end][:limit]
    return found, len(found) < len(rows) or any(truncated for _, truncated in parts)


def _pieces(keys: list[Key]) -> Iterable[list[Key]]:
    """Divide keys so that each piece fits a path."""
    piece: list[Key] = []
    room = 0
    for key in keys:
        size = len(quote(key_text(key), safe="")) + 3
        if piece and (size > room or len(piece) >= MOST_KEYS):
            yield piece
            piece = []
        if not piece:
            room = _CHARACTERS
        piece.append(key)
        room -= size
    if piece:
        yield piece


def _in_query(key: Key) -> str | None:
    """Write a key as in a path, where its own percent signs and commas are encoded; the query is encoded once more."""
    return None if key is None else key_text(key)


def _behind(prefix: bytes) -> bytes | None:
    """Return the first bytes behind all that begin with these; None: no key is behind them."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None
