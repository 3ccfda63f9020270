"""Look for a full snapshot by a compaction, because the worker then need not take its own (1.4)."""

from __future__ import annotations

from contextlib import closing

from statehold.errors import StateholdError, class_and_text
from statehold.ports import Cancelled, OutOfRange
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord, FullRef
from statehold.snapshot.restore.discovery import LocatedManifest, published
from statehold.worker.common.context import Tools


class CompactionSearch:
    """Used by the partition's thread. It never waits, because another thread reads."""

    def __init__(self, tools: Tools, refs: tuple[FullRef, ...]) -> None:
        """Start to read above the newest known full snapshot."""
        known = max((ref.offset for ref in refs), default=-1)
        self._tools = tools
        self._found: LocatedManifest | None = None
        self._closed = False
        self._call = tools.run_background(lambda: self._read(known), f"notice-{tools.place.partition}")

    def ended(self) -> bool:
        return self._call.ended()

    def result(self, refs: tuple[FullRef, ...], record: CommitRecord) -> LocatedManifest | None:
        """Return a full snapshot newer than all of `refs` that may be a base for this commit record.

        Call it after the end. A snapshot older than a command that asked for one does not answer the command.
        """
        found = self._found
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
            self._tools.log.warning("full_unusable", finding=f"{class_and_text(error)}")
