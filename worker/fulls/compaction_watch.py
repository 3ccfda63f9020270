"""A live worker looks whether a compaction has made a full meanwhile, so that it need not take its own (1.4)."""

from __future__ import annotations

from contextlib import closing

from statehold.common.background_call import Beside
from statehold.errors import StateholdError
from statehold.ports import Cancelled, OutOfRange
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord, FullRef
from statehold.snapshot.restore.discovery import LocatedManifest, published
from statehold.worker.common.context import Tools


class Notice:
    """Belongs to the partition's thread and never waits: reading goes on beside it."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._done: Beside | None = None
        self._found: LocatedManifest | None = None
        self._closed = False
        self.looking = False

    def look(self, refs: tuple[FullRef, ...]) -> None:
        """Begin to look above the newest full that is known."""
        known = max((ref.offset for ref in refs), default=-1)
        self._found, self.looking = None, True
        self._done = self._tools.aside(lambda: self._read(known), f"notice-{self._tools.place.partition}")

    def result(self, refs: tuple[FullRef, ...], mark: CommitRecord) -> LocatedManifest | None:
        """What is newer than all of `refs` and may be a base for this mark; only once it is found is `looking` over.

        A command asks for a full of a transaction at or after it; an older one is no answer.
        """
        if self._done is None or not self._done.ended():
            return None
        self._done, self.looking, found = None, False, self._found
        newest = max((ref.first for ref in refs), default=-1)
        if found is None or found.manifest.first <= newest or found.manifest.first < mark.take:
            return None
        return None if self._tools.place.refuses(found.manifest, mark) else found

    def close(self) -> None:
        self._closed = True

    def _read(self, known: int) -> None:
        """Whatever goes wrong only means that the worker takes a full of its own."""
        try:
            with closing(self._tools.reader(lambda: self._closed)) as reader:
                self._found = next(published(reader, self._tools.place, known), None)
        except (StateholdError, OutOfRange, Cancelled, frame.BadFrame) as error:
            self._tools.log.debug("full_unusable", finding=str(error))
        except Exception as error:  # noqa: BLE001 - a bug of ours; nobody waits for this call, so nobody else would tell
            self._tools.log.warning("full_unusable", finding=f"{type(error).__name__}: {error}")
