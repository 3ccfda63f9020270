"""Reads the committed state of a partition for queries, from any thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from statehold.disk.port import StoreClosed
from statehold.ports import Clock
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.standby_copy import Copy
from statehold.state.partition_table import PartitionTable
from statehold.state.state import State

T = TypeVar("T")
Tables = Mapping[str, PartitionTable[Any, Any]]

_TRIES: Final = 500
_PAUSE: Final = 0.001


class Busy(Exception):
    """Commits changed the state during every try to read it."""


class Committed:
    """The tables of a partition as its last commit left them. It holds the state: drop it after the request.

    `mark` returns the mark of the state. `age` returns the greatest age of the state in seconds; only a copy has one.
    """

    def __init__(
        self, state: State, commit_record: Callable[[], CommitRecord], age: Callable[[], float] | None = None
    ) -> None:
        self._state, self._commit_record, self._age = state, commit_record, age

    @classmethod
    def of_copy(cls, copy: Copy, clock: Clock) -> Committed:
        """Return the tables of a standby copy, whose partition another instance owns."""
        return cls(copy.state, partial(_of_copy, copy), lambda: max(0.0, clock() - copy.fresh))

    @property
    def age(self) -> float | None:
        """Return the greatest age in seconds, None for the owner's state. Ask before `read`."""
        return None if self._age is None else self._age()

    @property
    def tables(self) -> Tables:
        """Return the tables for their declarations; read values inside `read`."""
        return self._state.tables

    def read(self, look: Callable[[Tables], T], tries: int = _TRIES) -> tuple[T, CommitRecord]:
        """Return what `look` finds in `Table.stored`, all of one commit, and the mark of that commit.

        A commit during `look` makes it run again, so it should be short.

        :raises Busy: a commit came during every try.
        """
        state = self._state
        for left in reversed(range(tries)):
            version, commit_record = state.version, self._commit_record()
            if version % 2 == 0:
                try:
                    found = look(state.tables)
                except StoreClosed:
                    raise Busy from None  # the partition has left
                if state.version == version:
                    return found, commit_record
            if left:
                time.sleep(_PAUSE)
        raise Busy


def _of_copy(copy: Copy) -> CommitRecord:
    if copy.taken:
        raise Busy  # this process owns the state now and may have committed more
    return copy.shown
