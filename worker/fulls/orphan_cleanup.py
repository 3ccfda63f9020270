"""Has a store's orphans collected after each truncation, on a thread of its own."""

from __future__ import annotations

import threading

from statehold.common.background_call import Beside
from statehold.snapshot.store.by_url import open_store
from statehold.snapshot.store_orphans import collect
from statehold.worker.common.context import Tools

#: seconds that the end of a partition waits for a collection that is under way
_PATIENCE = 2.0


class Orphans:
    """Belongs to the partition's thread; nothing here waits."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._closed = threading.Event()
        self._running: Beside | None = None

    def collect(self) -> None:
        """Begin, where fulls are in a store, and the last time is over."""
        if self._tools.store_root and (self._running is None or self._running.ended(0.0)):
            self._running = self._tools.aside(self._run, f"orphans-{self._tools.place.partition}")

    def close(self) -> None:
        """A service that takes fulls at its stops only would never get there: it has a moment."""
        if self._running is not None:
            self._running.ended(_PATIENCE)
        self._closed.set()

    def _run(self) -> None:
        tools = self._tools
        try:
            reader = tools.reader(self._closed.is_set)
            try:
                removed = collect(open_store(tools.store_root), reader, tools.place, tools.wall())
            finally:
                reader.close()
        except Exception as error:  # noqa: BLE001 - too much is kept, and the next truncation tries again
            tools.log.warning("orphans_kept", cause=f"{type(error).__name__}: {error}")
            return
        if removed:
            tools.log.info("orphans_removed", fulls=removed)
