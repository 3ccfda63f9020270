"""Refuses a partition whose state would not fit, before the kernel's OOM killer ends the others with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal, Self

from statehold.errors import MemoryShort
from statehold.health import process_memory
from statehold.snapshot.format.partition_identity import Place

#: the part of the limit that states may fill; the rest is for batches, commits, decoded values
_SHARE: Final = 0.9
_LOOK_EVERY: Final = 0.2
_MB: Final = 1_000_000


class Memory:
    """Of one process, shared by its partitions; any thread."""

    def __init__(
        self,
        used: Callable[[], int] = process_memory.used,
        limit: Callable[[], tuple[int, str]] = process_memory.limit,
    ) -> None:
        self.used, self.limit = used, limit
        self.lock = threading.Lock()
        #: bytes that restores under way have still to fill
        self.awaited: dict[object, int] = {}


class Room:
    """One restore's part of it: `with room:` around the restore. The `RoomCheck` of its progress."""

    def __init__(self, process: Memory, limit: int | Literal["auto", "off"], place: Place) -> None:
        self._memory, self._limit, self._place = process, limit, place
        self._keys = self._predicted = 0
        self._looked = 0.0

    def __enter__(self) -> Self:
        self._keys = self._predicted = 0
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keys = 0
        with self._memory.lock:
            self._memory.awaited.pop(self, None)

    def foresee(self, keys: int, size: int) -> None:
        """Before a full is loaded: two partitions that ask at once do not get the same room twice."""
        if self._limit == "off":
            return
        self._keys, self._predicted = keys, process_memory.predicted(keys, size)
        with self._memory.lock:
            self._memory.awaited.pop(self, None)
            self._require(self._predicted)
            self._memory.awaited[self] = self._predicted

    def look(self, now: float, keys: int) -> None:
        """While it loads, and where no manifest has told: what it really takes."""
        if self._limit == "off" or now - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        with self._memory.lock:
            if self._keys:
                self._memory.awaited[self] = round(self._predicted * max(0.0, 1.0 - keys / self._keys))
            self._require(0)

    def _require(self, wanted: int) -> None:
        allowed, whose = self._memory.limit() if self._limit == "auto" else (int(self._limit), "restore.memory_limit")
        used, others = self._memory.used(), sum(self._memory.awaited.values())
        # Its own part of what is awaited is no reason to give up half way: only what is really there is.
        others = others if wanted else 0
        if not allowed or used + others + wanted <= _SHARE * allowed:
            return
        state = f"its state takes about {_shown(wanted)} ({self._keys:,} keys)" if wanted else "its restore goes on"
        restoring = f", other restores will take {_shown(others)}" if others else ""
        raise MemoryShort(
            f"{state}, the process has {_shown(used)}{restoring}, and may have {_shown(_SHARE * allowed)}: nine "
            f"tenths of {_shown(allowed)} ({whose}). Not loaded; the others go on. Give it more memory, or start "
            f"another instance, which takes partitions over; `statehold retry {self._place.partition}` tries again, "
            f"and so does time",
            topic=self._place.input,
            partition=self._place.partition,
        )


def _shown(size: float) -> str:
    return f"{size / _MB:,.0f} MB"
