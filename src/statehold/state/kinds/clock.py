"""The partition's own time: the highest timestamp of its records, or of a tick while it was idle."""

from __future__ import annotations

import math
from typing import Final

from statehold.api.table import Table
from statehold.state.partition_table import Changes, PartitionTable

_NOW: Final = "now"


class Horizon:
    """A time before which nothing is due: a row that is due earlier lowers it, and event time raises it again."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = -math.inf


class ClockTable(PartitionTable[str, int]):
    """Holds the time in `now`, which is written with each transaction and rolled back with it."""

    #: milliseconds since 1970; 0 before the first record
    now: int = 0

    def __init__(self) -> None:
        super().__init__(Table(key=str, value=int))

    def freeze(self) -> Changes:
        if self.now != self.get(_NOW, 0):
            self.put(_NOW, self.now)
        return super().freeze()

    def rollback(self) -> None:
        super().rollback()
        self.now = self.get(_NOW, 0)

    def loaded(self) -> None:
        super().loaded()
        self._cache.clear()
        self.now = self.get(_NOW, 0)
