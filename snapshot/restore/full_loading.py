"""One attempt to load a full: where its chunks come from, what is shown of it, and the copy for the local disk."""

from __future__ import annotations

from collections.abc import Iterator

from statehold.ports import Reader
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import EntryDecoder, FullRef, Manifest, Mark
from statehold.snapshot.full import FullUnusable, load
from statehold.snapshot.restore.local_cache import LocalFulls, LocalUnusable, LocalWriter
from statehold.snapshot.restore.progress import Progress
from statehold.snapshot.state import State


class Loading:
    """Used for one full, once: `run`, then `proven` or `failed`. The `Watch` of `full.load`."""

    def __init__(
        self, ref: FullRef, progress: Progress, local: LocalFulls | None, *, from_disk: bool, store: str = ""
    ) -> None:
        self._store = store
        self._ref, self._progress, self._local = ref, progress, local
        self.from_disk = from_disk
        self._data, self._seen = b"", 0
        self._in_kafka = True
        self._copy: LocalWriter | None = None

    def run(
        self, reader: Reader, place: Place, mark: Mark, state: State, decoder: EntryDecoder, *, replayed: bool
    ) -> Manifest:
        """See `full.load`."""
        self._progress.enter("local" if self.from_disk else "full", self._ref.low, self._ref.offset)
        elsewhere = self._from_disk if self.from_disk else None
        return load(
            reader,
            place,
            self._ref,
            mark,
            state,
            decoder,
            replayed=replayed,
            watch=self,
            elsewhere=elsewhere,
            store=self._store,
        )

    def found(self, manifest: Manifest, data: bytes) -> None:
        self._progress.foresee(manifest.keys, manifest.size)
        self._data = data
        self._in_kafka = not (self.from_disk or manifest.store)
        if not self._in_kafka:
            self._progress.enter("local" if self.from_disk else "full", 0, len(manifest.checksums))
        if not self.from_disk and self._local is not None:
            self._copy = self._local.begin()

    def chunk(self, data: bytes) -> None:
        self._seen += 1
        if not self._in_kafka:
            self._progress.advance(self._seen, len(data), 1)
        if self._copy is not None:
            self._copy.add(data)

    def proven(self) -> None:
        """The state that followed from it has the digest that its writer recorded: it may go to the disk."""
        if self._copy is not None:
            self._copy.keep(self._data, self._ref)

    def failed(self, why: str) -> None:
        """It was no use, or was not proven."""
        self.drop()
        if self.from_disk and self._local is not None:
            self._local.discard(why)

    def drop(self) -> None:
        """Something else ended it."""
        if self._copy is not None:
            self._copy.drop()

    def _from_disk(self, manifest: bytes) -> Iterator[bytes]:
        assert self._local is not None
        try:
            yield from self._local.chunks(manifest)
        except LocalUnusable as error:
            raise FullUnusable(str(error)) from error
