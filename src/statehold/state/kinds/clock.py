"""The partition's own time: the highest timestamp of its records, or of a tick while it was idle."""

from __future__ import annotations

import math
from datetime import UTC, datetime
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


def shown(milliseconds: int) -> str:
    """Return a time as people read it. It may be any number, because producers set timestamps."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # before the year 1 or after 9999
        return f"{milliseconds} ms after 1970"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def distance(milliseconds: int) -> str:
    """Return the length of a time as people read it: whole days, or hours, minutes and seconds."""
    days, seconds = divmod(milliseconds // 1000, 86_400)
    if days:
        return f"{days} days" if days > 1 else "1 day"
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} h"
