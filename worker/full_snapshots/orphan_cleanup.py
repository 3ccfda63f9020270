"""Delete orphaned chunks of a store after each truncation, on a separate thread."""

from __future__ import annotations

from statehold.common.threads import CallInProgress
from statehold.snapshot.store.by_url import open_store
from statehold.snapshot.store_orphans import collect
from statehold.worker.common.context import Tools

#: seconds that a closing partition waits for a running cleanup
_PATIENCE = 2.0


class OrphanCleanup:
    """Used by the partition's thread; only `close` waits."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._closed = tools.threads.event()
        self._running: CallInProgress | None = None

    def collect(self) -> None:
        """Start a cleanup if full snapshots are in a store and no cleanup runs."""
        if self._tools.store_root and (self._running is None or self._running.ended(0.0)):
            self._running = self._tools.run_background(self._run, f"orphans-{self._tools.place.partition}")

    def close(self) -> None:
        """Wait briefly, because a service that takes full snapshots only at a stop would otherwise never clean up."""
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
        except Exception as error:  # noqa: BLE001 - the orphans remain, and the next truncation retries
            tools.log.warning("orphans_kept", cause=f"{type(error).__name__}: {error}")
            return
        if removed:
            tools.log.info("orphans_removed", full_snapshots=removed)
