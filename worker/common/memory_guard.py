"""Reject a partition whose state would not fit, before the kernel's OOM killer ends all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Literal

from statehold.errors import MemoryShort
from statehold.health import process_memory
from statehold.snapshot.format.partition_identity import Place

#: the part of the limit that states may fill; the rest is for batches, commits, decoded values
_SHARE: Final = 0.9
_LOOK_EVERY: Final = 0.2
_MB: Final = 1_000_000


class Memory:
    """Memory use of one process, shared by its partitions; any thread."""

    def __init__(
        self,
        used: Callable[[], int] = process_memory.used,
        limit: Callable[[], tuple[int, str]] = process_memory.limit,
        of_files: Callable[[], int] = process_memory.of_files,
    ) -> None:
        self.used, self.limit, self.of_files = used, limit, of_files
        self.lock = threading.Lock()
        #: bytes that running restores will still fill
        self.awaited: dict[object, int] = {}


class Room(AbstractContextManager["Room"]):
    """The memory of one restore: `with room:` around the restore. The `RoomCheck` of its progress."""

    def __init__(
        self,
        process: Memory,
        limit: int | Literal["auto", "off"],
        place: Place,
        *,
        on_disk: Callable[[], int] | None = None,
    ) -> None:
        """`on_disk`: the state goes to files, so the actual use counts, without the pages of files.

        It returns the bytes that decoded values may still take (`state.memory`).
        """
        self._memory, self._limit, self._place, self._on_disk = process, limit, place, on_disk
        self._keys = self._predicted = 0
        self._looked = 0.0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keys = 0
        with self._memory.lock:
            self._memory.awaited.pop(self, None)

    def foresee(self, keys: int, size: int) -> None:
        """Reserve memory before a full snapshot is loaded, because two restores must not use the same room."""
        if self._limit == "off" or self._on_disk is not None:
            return
        self._keys, self._predicted = keys, process_memory.predicted(keys, size)
        with self._memory.lock:
            self._memory.awaited.pop(self, None)
            self._require(self._predicted)
            self._memory.awaited[self] = self._predicted

    def look(self, now: float, keys: int) -> None:
        """Check the actual use during the restore, also where no manifest predicts it."""
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
        decoded = 0
        if self._on_disk is not None:
            used, decoded = used - self._memory.of_files(), self._on_disk()
        # During the restore only the actual use counts, because its own reservation must not end it half way.
        others = others if wanted else 0
        if not allowed or used + others + wanted + decoded <= _SHARE * allowed:
            return
        state = f"the state needs about {_shown(wanted)} ({self._keys:,} keys)" if wanted else "its restore is running"
        restoring = f", other restores will use {_shown(others)}" if others else ""
        fewer = ", or lower state.memory" if decoded else ""
        if decoded:
            restoring += f", decoded values of tables on disk may take {_shown(decoded)} more (state.memory)"
        raise MemoryShort(
            f"load: {state}, the process uses {_shown(used)}{restoring}, and may use {_shown(_SHARE * allowed)}: "
            f"nine tenths of {_shown(allowed)} ({whose}). Nothing is lost, and the other partitions keep running; it "
            f"is retried every 60 s. Next: give the process more memory{fewer}, or start another instance, which takes "
            f"over partitions; then `statehold retry {self._place.partition}` retries now",
            topic=self._place.input,
            partition=self._place.partition,
        )


def _shown(size: float) -> str:
    return f"{size / _MB:,.0f} MB"
