"""Where a replay repeats what a commit record keeps in addition to the records of the input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from statehold.messages.pinned_command import Placed, TimeLimit
from statehold.snapshot.format.records import CommitRecord

T = TypeVar("T")


def placed(record: CommitRecord, input: str, handled: Iterable[T]) -> Sequence[Placed[T | TimeLimit]]:
    """Return what the transaction handled after its records, and around all of it the limit of its time."""
    position = record.position(input)
    pieces: list[Placed[T | TimeLimit]] = [Placed(position, each) for each in handled]
    if not record.time_limit:
        return pieces
    begin, end = Placed(record.start, TimeLimit(record.time_limit)), Placed(position, TimeLimit(0))
    return [begin, *pieces, end]
