"""The stages of the search for the record whose row a database rejects (rule L4), with their legal edges: no I/O.

    NoSearch --> RowWanted --> RecordFound
       |            |  a row is rejected |
       +---------> Halved <--------------+

Each of them goes back to NoSearch once everything in question has committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from statehold.bound.sink import Rows
from statehold.errors import UsageError


@dataclass(frozen=True, slots=True)
class NoSearch:
    """No row is rejected."""

    #: most records of a transaction; 0: as ever
    limit = 0


@dataclass(frozen=True, slots=True)
class RowWanted:
    """The records below `until` are handled one by one until one of them puts `row`."""

    until: int
    row: Rows
    limit = 0

    def put_by(self, place: int, before: int) -> RecordFound:
        """Return the stage after the record at this place has put the row, behind `before` others."""
        return RecordFound(place + 1, before)


@dataclass(frozen=True, slots=True)
class RecordFound:
    """The record below `until` has put the row: `before` records commit first, then it is handled alone."""

    until: int
    before: int

    @property
    def limit(self) -> int:
        return max(1, self.before)


@dataclass(frozen=True, slots=True)
class Halved:
    """The row is unknown, or no record has put it: the records below `until` are handled in transactions of `limit`."""

    until: int
    limit: int


RowSearch = NoSearch | RowWanted | RecordFound | Halved

EDGES: Final[dict[type[RowSearch], frozenset[type[RowSearch]]]] = {
    NoSearch: frozenset({RowWanted, Halved}),
    RowWanted: frozenset({RecordFound, Halved, NoSearch}),
    RecordFound: frozenset({RecordFound, Halved, NoSearch}),
    Halved: frozenset({Halved, NoSearch}),
}


def require_edge(stage: RowSearch, following: RowSearch) -> None:
    """:raises UsageError: `stage` does not lead to `following`."""
    if type(following) not in EDGES[type(stage)]:
        raise UsageError(f"a search for a row cannot go from {type(stage).__name__} to {type(following).__name__}")


def rejected(stage: RowSearch, position: int, records: int, row: Rows | None) -> RowSearch:
    """Return the stage after the rejection of a transaction of these records, up to `position`.

    `row`: the rejected one, if the session has found it. Only the first rejection is searched by it.
    """
    if isinstance(stage, NoSearch) and row is not None and records > 1:
        return RowWanted(position, row)
    return Halved(position, max(1, records // 2))


def committed(stage: RowSearch, position: int, records: int) -> RowSearch:
    """Return the stage after the commit of these records, up to `position`."""
    if isinstance(stage, NoSearch) or position >= stage.until:
        return NoSearch()
    if isinstance(stage, RecordFound):
        return RecordFound(stage.until, max(0, stage.before - records))
    return stage
