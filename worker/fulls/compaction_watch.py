"""Look for a full snapshot by a compaction, because the worker then need not take its own (1.4)."""

from __future__ import annotations

from contextlib import closing

from statehold.common.background_call import Beside
from statehold.errors import StateholdError
from statehold.ports import Cancelled, OutOfRange
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord, FullRef
from statehold.snapshot.restore.discovery import LocatedManifest, published
from statehold.worker.common.context import Tools


class CompactionWatch:
    """Used by the partition's thread. It never waits, because another thread reads."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._done: Beside | None = None
        self._found: LocatedManifest | None = None
        self._closed = False
        self.looking = False

    def look(self, refs: tuple[FullRef, ...]) -> None:
        """Start to read above the newest known full snapshot."""
        known = max((ref.offset for ref in refs), default=-1)
        self._found, self.looking = None, True
        self._done = self._tools.aside(lambda: self._read(known), f"notice-{self._tools.place.partition}")

    def result(self, refs: tuple[FullRef, ...], record: CommitRecord) -> LocatedManifest | None:
        """Return a full snapshot newer than all of `refs` that may be a base for this commit record. Ends `looking`.

        A snapshot older than a command that asked for one does not answer the command.
        """
        if self._done is None or not self._done.ended():
            return None
        self._done, self.looking, found = None, False, self._found
        newest = max((ref.first for ref in refs), default=-1)
        if found is None or found.manifest.first <= newest or found.manifest.first < record.take:
            return None
        return None if self._tools.place.refuses(found.manifest, record) else found

    def close(self) -> None:
        self._closed = True

    def _read(self, known: int) -> None:
        """Read the newest manifest. After an error the worker takes its own full snapshot."""
        try:
            with closing(self._tools.reader(lambda: self._closed)) as reader:
                self._found = next(published(reader, self._tools.place, known), None)
        except (StateholdError, OutOfRange, Cancelled, frame.BadFrame) as error:
            self._tools.log.debug("full_unusable", finding=str(error))
        except Exception as error:  # noqa: BLE001 - a bug must be logged, because no caller waits for this thread
            self._tools.log.warning("full_unusable", finding=f"{type(error).__name__}: {error}")
