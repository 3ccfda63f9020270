"""The port to the files of one partition: what `LmdbStore` and the driver's `MemoryStore` have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from statehold.disk.usage import ScrubNote
from statehold.snapshot.format.partition_identity import Place

#: by table: place of a row -> the row, None deletes it
Batch = Mapping[str, Mapping[bytes, bytes | None]]


class StoreClosed(Exception):
    """The partition has left, and its files are closed."""


class StoreSnapshot(Protocol):
    """The files as of one moment, whatever is written meanwhile."""

    def label(self) -> bytes | None:
        """Return the label that was written with these rows. Raises as `PartitionStore.get`."""
        ...

    def rows(
        self, table: str, low: bytes | None = None, high: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield places and rows with low <= place < high in order. Raises as `PartitionStore.get`."""
        ...

    def close(self) -> None:
        """End the snapshot, because it keeps old pages in the file. A second call does nothing."""
        ...


class PartitionStore(Protocol):
    """One partition's files. Its thread writes; any thread may read.

    Every method raises LocalStoreFailed if the disk fails, and StoreClosed after `close`.
    """

    def label(self) -> bytes | None:
        """Return the label of the last `apply`: which committed state the files hold. None: they hold none."""
        ...

    def get(self, table: str, place: bytes) -> bytes | None:
        """Return the row at a place."""
        ...

    def get_each(self, table: str, places: list[bytes]) -> list[bytes | None]:
        """Return the rows at many places; None for one that has none."""
        ...

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        ...

    def snapshot(self) -> StoreSnapshot: ...

    def apply(self, batch: Batch, label: bytes | None) -> None:
        """Write all rows and the label at once, or nothing. `label` None: the files hold no committed state now."""
        ...

    def clear(self) -> None:
        """Delete all rows and the label."""
        ...

    def size(self) -> int:
        """Return the bytes of the files."""
        ...

    def used(self) -> int:
        """Return the bytes of the files without free pages, which later writes use. Raises as `get`."""
        ...

    def room(self) -> int:
        """Return the bytes by which the files may grow."""
        ...

    def damaged(self, cause: str) -> Exception:
        """Drop the label, so that no start uses these files again; return the error to raise."""
        ...

    def scrubbed(self, note: ScrubNote) -> ScrubNote:
        """Keep the note of a pass for `statehold doctor`; return it with what an earlier pass found. Any thread."""
        ...

    def last_scrub(self) -> ScrubNote | None:
        """Return the note of the last pass over files of this partition on this machine. Any thread."""
        ...

    def proven(self) -> None:
        """The partition has committed since it started from these files."""
        ...

    def close(self, *, flush: bool = True) -> None:
        """Close the files; what was applied stays. A second call does nothing.

        `flush`: wait until all is on the disk, so that a start after a crash of the machine can use it.
        """
        ...


class Stores(Protocol):
    """The files of all partitions of a process."""

    def open(self, place: Place, tables: Sequence[str]) -> PartitionStore:
        """Open the files of a partition, or make new ones. :raises LocalStoreFailed:"""
        ...
