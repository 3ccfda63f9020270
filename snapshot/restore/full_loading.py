"""Loads one full snapshot for a restore: from Kafka, a store or the local disk, and copies it to the local disk."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from statehold.errors import DigestMismatch
from statehold.ports import Reader
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, EntryDecoder, FullRef, Manifest
from statehold.snapshot.full import FullUnusable, load
from statehold.snapshot.restore.local_cache import LocalFullSnapshots, LocalUnusable, LocalWriter
from statehold.snapshot.restore.progress import Progress
from statehold.state.state import State


class FullLoading:
    """Loads one full snapshot, once, and watches `full.load` as a `LoadObserver`.

    Use it in a `with` block that also applies the deltas and checks the digest. If the block succeeds, the full
    snapshot is proven and its copy goes to the local disk.
    """

    def __init__(self, ref: FullRef, progress: Progress, local: LocalFullSnapshots | None, *, from_disk: bool) -> None:
        self._ref, self._progress, self._local = ref, progress, local
        self._from_disk = from_disk
        self._data, self._seen = b"", 0
        self._in_kafka = True
        self._copy: LocalWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._copy is not None:
            if error is None:
                self._copy.keep(self._data, self._ref)
            else:
                self._copy.drop()
        if self._from_disk and self._local is not None and isinstance(error, (FullUnusable, DigestMismatch)):
            self._local.discard(str(error))

    def run(
        self,
        reader: Reader,
        place: Place,
        commit_record: CommitRecord,
        state: State,
        decoder: EntryDecoder,
        *,
        replayed: bool,
    ) -> Manifest:
        """Load the full snapshot into `state`; see `full.load`."""
        self._progress.enter("local" if self._from_disk else "full", self._ref.low, self._ref.offset)
        return load(
            reader,
            place,
            self._ref,
            commit_record,
            state,
            decoder,
            replayed=replayed,
            watch=self,
            elsewhere=self._chunks_on_disk if self._from_disk else None,
        )

    def found(self, manifest: Manifest, data: bytes) -> None:
        self._progress.foresee(manifest.loads, manifest.size)
        self._data = data
        self._in_kafka = not (self._from_disk or manifest.store)
        if not self._in_kafka:
            self._progress.enter("local" if self._from_disk else "full", 0, len(manifest.checksums))
        if not self._from_disk and self._local is not None:
            self._copy = self._local.begin()

    def chunk(self, data: bytes) -> None:
        self._seen += 1
        if not self._in_kafka:
            self._progress.advance(self._seen, len(data), 1)
        if self._copy is not None:
            self._copy.add(data)

    def _chunks_on_disk(self, manifest: bytes) -> Iterator[bytes]:
        assert self._local is not None
        try:
            yield from self._local.chunks(manifest)
        except LocalUnusable as error:
            raise FullUnusable(str(error)) from error
