"""The directory of all partitions' files on a machine: finds or makes those of one partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from statehold.config.sections.state import StateSettings
from statehold.disk.lmdb_store import LmdbStore, Locked, Unusable
from statehold.disk.usage import UnfitFiles, boot_id
from statehold.errors import LocalStoreFailed
from statehold.snapshot.format.partition_identity import Place

#: directories of one partition: another process, or a worker that has not ended, may hold the first ones
_SLOTS: Final = 4
_RETRY: Final = 10


def root_of(state: StateSettings, state_dir: Path | None) -> Path | None:
    """Return the directory of all partitions' files; `state_dir` is that of `service.state_dir`, None if it is off."""
    if state.dir:
        return Path(state.dir)
    return None if state_dir is None else state_dir / "tables"


def base_of(root: Path, place: Place) -> Path:
    names = place.names
    return root / f"{names.group}.{names.input}.{place.partition}"


def slots(root: Path, place: Place) -> list[Path]:
    """Return the directories that may hold a partition's files, in the order in which a start tries them."""
    return [base_of(root, place) / str(slot) for slot in range(_SLOTS)]


class LocalStores:
    """`Stores` in `state.dir`. `dropped` logs why files were deleted: their path, the cause."""

    def __init__(
        self, root: Path, limit: int, dropped: Callable[[str, str], None], boot: Callable[[], str] = boot_id
    ) -> None:
        self._root, self._limit, self._dropped, self._boot = root, limit, dropped, boot

    def open(self, place: Place, tables: Sequence[str]) -> LmdbStore:
        """Open the first directory of the partition that no other process holds.

        :raises LocalStoreFailed: the disk fails, or all are held.
        """
        base = base_of(self._root, place)
        failure = partial(_failure, place, base)
        for directory in slots(self._root, place):
            try:
                return self._open(directory, tables, failure)
            except Locked:
                continue
            except OSError as error:
                raise failure("open", str(error)) from error
        raise failure("open", f"other processes hold its {_SLOTS} directories")

    def _open(
        self, directory: Path, tables: Sequence[str], failure: Callable[[str, str], LocalStoreFailed]
    ) -> LmdbStore:
        try:
            return LmdbStore(directory, tables, self._limit, self._boot(), failure)
        except (Unusable, UnfitFiles) as error:
            self._dropped(str(directory), str(error))
        for name in ("data.mdb", "lock.mdb", "usage"):
            (directory / name).unlink(missing_ok=True)
        return LmdbStore(directory, tables, self._limit, self._boot(), failure)


def _failure(place: Place, base: Path, doing: str, cause: str) -> LocalStoreFailed:
    return LocalStoreFailed(
        f"{doing} {base}: {cause}. Nothing is lost, because the state is in Kafka; it is retried every {_RETRY} s. "
        f"Next: free space, fix the directory, or raise state.disk_limit if that is full; `statehold retry "
        f"{place.partition}` retries now",
        topic=place.names.input,
        partition=place.partition,
    )
