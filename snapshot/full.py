"""Writes full snapshots slice by slice at commit boundaries, and loads them (rules S1-S5).

A `FullWriter` belongs to the partition's own thread. It never waits: each call does what fits into its budget.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from statehold.errors import DamagedIncrement, RestoreTimeout
from statehold.ports import Clock, FullSink, OutOfRange, Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.recorded_types import RecordedTypes
from statehold.snapshot.format.records import Chunk, CommitRecord, EntryDecoder, FullRef, Manifest, UnknownTable, split
from statehold.snapshot.shared_chunks import KnownChunks, Shared, UndeclaredRows
from statehold.snapshot.store.base import SegmentGone, StoreTrouble
from statehold.snapshot.store.fetch import stored_frames
from statehold.state import digest
from statehold.state.partition_table import Changes
from statehold.state.state import State

#: most keys of a chunk. Compressing a chunk lets another thread run, which then keeps the interpreter's lock for a
#: while: with four times as many chunks a full snapshot under load takes half as long again
CHUNK_KEYS = 2048


class FullUnusable(Exception):
    """This full snapshot cannot be a base; the text says why. It is never fatal: a restore tries the next base."""


class FullDiffers(FullUnusable):
    """Its contents are not those of its commit record: memory, the log or a store has changed them."""


class FullWriter:
    """Writes one full snapshot from the commit boundary `mark` on. Call `advance` at each later boundary.

    With `shared` it writes only the keys that have changed since that one began, in chunks that follow its chunks.
    """

    def __init__(
        self,
        place: Place,
        state: State,
        commit_record: CommitRecord,
        increment: int,
        newest: int,
        sink: FullSink,
        chunk_bytes: int,
        shared: Shared | None = None,
    ) -> None:
        self._sink, used = sink, state.used
        self._first = self._through = commit_record.n
        self._all_keys = commit_record.keys
        # Freeze the keys now. Each chunk holds their values at the time it is read (rule S2), or of now.
        before = None if shared is None else shared.manifest
        pieces = state.pieces(CHUNK_KEYS) if shared is None else shared.changed.pieces(state.tables, CHUNK_KEYS)
        self._chunks, self._pieces = _chunks(pieces, chunk_bytes), pieces
        self._shared, self._before = shared, before
        self._id = before.full if before else uuid.uuid4().hex[:16]
        self._newest = newest
        #: of all chunks, those that are there already first
        self._checksums: list[int] = list(before.checksums) if before else []
        self._there = len(self._checksums)
        #: written so far
        self.keys = self.bytes = 0
        self._decoder = EntryDecoder(state.key_types)
        #: of the chunks as a restore would decode them
        self._digest = 0 if shared is None else shared.changed.rest
        self._all_sent = self._manifest_sent = False
        self._segments = 0
        #: complete once `advance` has returned the reference
        self.manifest = Manifest(
            full=self._id,
            service=commit_record.service,
            partition=commit_record.partition,
            partitions=commit_record.partitions,
            lineage=commit_record.lineage,
            first=commit_record.n,
            through=commit_record.n,
            positions=commit_record.positions,
            inputs=commit_record.inputs,
            topic_ids=commit_record.topic_ids,
            digest=commit_record.digest,
            increment=increment,
            low=-1,
            store=sink.open(self._id, before.segments if before else 0),
            format=commit_record.format,
            schemas=place.merged_schemas(commit_record, place.schemas),
            types=RecordedTypes(place.types, commit_record, used).after(commit_record, commit_record.format, used, ()),
            writer=place.writer,
            time=commit_record.time,
        )

    def advance(self, n: int, budget: float, clock: Clock, wait: float = 0.0) -> FullRef | None:
        """Write another slice of the state after transaction `n`. Return the reference once all is acknowledged.

        `budget` is in seconds; a negative budget writes the rest. `wait` limits the wait for acknowledgements.
        :raises KafkaTrouble: abandon the full snapshot.
        :raises FullUnusable: a restore would not load this state from it; abandon it.
        """
        until = clock() + budget
        while not self._all_sent and (budget < 0 or (clock() < until and not self._sink.crowded)):
            self._slice(n)
        return self._acknowledge(wait)

    def _slice(self, n: int) -> None:
        found = next(self._chunks, None)
        if getattr(self._pieces, "exact", False):
            n = self._first
        if found is None:
            if self._shared is None and self.keys != self._all_keys and n > self._first:
                self._through = n  # keys were deleted since, so this is not the state of one boundary
            self._compare_digests()
            self._all_sent, self._segments = True, self._sink.seal()
            return
        self._through = n
        raw = records.entry(found)
        self._prove(found, raw)
        payload = records.pack(Chunk(self._id, len(self._checksums), self._newest, raw), self.manifest.format)
        self._checksums.append(frame.body_checksum(payload))
        self.keys, self.bytes = self.keys + len(found.keys), self.bytes + len(raw)
        self._sink.send(payload)

    def _prove(self, found: Changes, raw: msgspec.Raw) -> None:
        """Decode a chunk's entry as a restore would. :raises FullDiffers: it would load other keys or values."""
        try:
            loaded = self._decoder.decode(raw)
        except frame.BadFrame as error:
            raise FullDiffers(f"a restore could not read table {found.table!r}: {error}") from error
        if loaded.keys != found.keys or records.entry(loaded) != raw:
            wrong = [repr(key) for key, back in zip(found.keys, loaded.keys, strict=True) if _differs(key, back)]
            what = f"key {wrong[0]}" if wrong else f"one of {len(found.keys)} values"
            raise FullDiffers(f"table {found.table!r}: {what} would be restored as another one")
        if self._through == self._first:
            keys, values = loaded.keys, loaded.values
            if None in values:  # a deleted key adds nothing
                keys = [key for key, value in zip(keys, values, strict=True) if value is not None]
                values = [value for value in values if value is not None]
            self._digest += digest.table_digest(loaded.table, keys, values)  # type: ignore[arg-type]

    def _compare_digests(self) -> None:
        """Compare with the commit record, if all chunks are of its boundary. Otherwise a restore compares a later one.

        :raises FullDiffers: they differ.
        """
        written = digest.to_bytes(self._digest)
        if self._through == self._first and written != self.manifest.digest:
            raise FullDiffers(
                f"its digest is {digest.show(written)}, that of transaction {self._first} is "
                f"{digest.show(self.manifest.digest)}: the state in memory differs from the committed one"
            )

    def _acknowledge(self, wait: float) -> FullRef | None:
        offsets, sent = self._sink.acknowledged(wait), len(self._checksums) - self._there
        if not self._all_sent or len(offsets) < sent:
            return None
        if not self._manifest_sent:
            self._manifest_sent, self.manifest = True, self._complete(offsets)
            self._sink.send(records.pack(self.manifest))
            offsets = self._sink.acknowledged(wait)
        if len(offsets) <= sent:
            return None
        low = offsets[0] if offsets[0] >= 0 else offsets[-1]
        if self._shared is not None:
            low = self._shared.ref.low
        return FullRef(low, offsets[-1], self._first, self._through, self.manifest.increment)

    def _complete(self, offsets: list[int]) -> Manifest:
        fuzzy = self._first != self._through
        if self._shared is not None:
            return self._extended(self._shared, fuzzy=fuzzy)
        return msgspec.structs.replace(
            self.manifest,
            through=self._through,
            digest=b"" if fuzzy else self.manifest.digest,
            low=min(offsets, default=-1),
            segments=self._segments,
            checksums=tuple(self._checksums),
            keys=self.keys,
            size=self.bytes,
        )

    def _extended(self, shared: Shared, *, fuzzy: bool) -> Manifest:
        before = shared.manifest
        return msgspec.structs.replace(
            self.manifest,
            through=self._through,
            digest=b"" if fuzzy else self.manifest.digest,
            low=before.low,
            segments=self._segments,
            checksums=tuple(self._checksums),
            keys=self._all_keys,
            size=before.size + self.bytes,
            shared=self._there,
            rows=before.loads + self.keys,
            family=shared.ref.low,
        )


def _differs(key: Any, back: Any) -> bool:
    return bool(key != back or type(key) is not type(back))


def _chunks(pieces: Iterator[Changes], chunk_bytes: int) -> Iterator[Changes]:
    for piece in pieces:
        yield from split(piece, chunk_bytes)


class LoadObserver(Protocol):
    """Observes the loading of a full snapshot."""

    def found(self, manifest: Manifest, data: bytes) -> None:
        """Take the manifest and its frame; the chunks follow."""
        ...

    def chunk(self, data: bytes) -> None:
        """Take the next chunk's frame, verified."""
        ...


def load(
    reader: Reader,
    place: Place,
    ref: FullRef,
    commit_record: CommitRecord,
    state: State,
    decoder: EntryDecoder,
    *,
    replayed: bool = False,
    watch: LoadObserver | None = None,
    elsewhere: Callable[[bytes], Iterator[bytes]] | None = None,
    after: KnownChunks | None = None,
) -> Manifest:
    """Load the full snapshot that `ref` hints at into an empty state; `replayed` as in `Place.refuses`.

    `elsewhere` returns the chunks of the full snapshot with a manifest of these bytes. Without it they come from Kafka,
    or from one of the place's stores. The chunks that it shares with `after` are left out.

    :raises FullUnusable: it is absent, incomplete, damaged, or not a base for this commit record. Discard the state.
    :raises RestoreTimeout: Kafka or the store did not deliver.
    """
    try:
        data, manifest = _manifest(reader, place, ref)
        refusal = place.refuses(manifest, commit_record, replayed=replayed)
        if refusal:
            raise FullUnusable(refusal)
        if watch is not None:
            watch.found(manifest, data)
        if after is not None and not manifest.extends(after.manifest):
            after = None
        frames = elsewhere(data) if elsewhere else chunk_frames(reader, place, manifest, ref.offset, after)
        _load_chunks(frames, manifest, state, decoder, watch, len(after.manifest.checksums) if after else 0)
    except OutOfRange as error:
        raise FullUnusable(f"its records are gone: {error}") from error
    except UnknownTable:
        raise  # an older full snapshot would not help
    except frame.UnknownFormat as error:
        raise FullUnusable(f"a newer release wrote it: {error}") from error
    except (frame.BadFrame, DamagedIncrement) as error:
        raise FullDiffers(f"damaged: {error}") from error
    return manifest


def _manifest(reader: Reader, place: Place, ref: FullRef) -> tuple[bytes, Manifest]:
    start, end = reader.bounds(place.names.snapshot, place.partition)
    if not start <= ref.low or not ref.offset < end:
        raise FullUnusable(f"its records are gone: the topic holds offsets {start} to {end}")
    for batch in reader.read(place.names.snapshot, place.partition, ref.offset, ref.offset + 1):
        for message in batch:
            data = message.value()
            record = records.unpack(data)
            if isinstance(record, Manifest):
                return data, record
    raise FullUnusable(f"there is no manifest at offset {ref.offset}")


def chunk_frames(
    reader: Reader, place: Place, manifest: Manifest, end: int, after: KnownChunks | None = None
) -> Iterator[bytes]:
    """Yield the frames that may be chunks of this full snapshot, in order; `end` is the manifest's offset.

    `after`: an earlier one whose chunks it has; they are left out.

    :raises FullUnusable: a part of it is missing in its store. :raises RestoreTimeout: the store does not answer.
    """
    if not manifest.checksums:
        return
    if manifest.store:
        try:
            first = after.manifest.segments if after else 0
            yield from stored_frames(manifest, place.roots, reader.cancelled, first=first)
        except SegmentGone as error:
            raise FullUnusable(str(error)) from error
        except frame.BadFrame as error:
            raise FullDiffers(f"a segment in its store is damaged: {error}") from error
        except StoreTrouble as error:
            raise RestoreTimeout(str(error), topic=place.names.snapshot, partition=place.partition) from error
        return
    start = after.offset + 1 if after else manifest.low
    for batch in reader.read(place.names.snapshot, place.partition, start, end):
        for message in batch:
            data = message.value()
            if frame.kind_of(data) == b"C":
                yield data


def _load_chunks(
    frames: Iterator[bytes],
    manifest: Manifest,
    state: State,
    decoder: EntryDecoder,
    watch: LoadObserver | None,
    seen: int,
) -> None:
    """Load the chunks. Skip duplicated and foreign ones; reject the full snapshot if one is missing or damaged.

    Foreign are also those of a killed compaction that would have continued the family.
    """
    wanted = len(manifest.checksums)
    gone = UndeclaredRows() if manifest.shared else None
    for data in frames:
        chunk = records.unpack(data)
        if not isinstance(chunk, Chunk) or chunk.full != manifest.full or not seen <= chunk.i < wanted:
            continue
        if chunk.i != seen or frame.body_checksum(data) != manifest.checksums[seen]:
            raise FullDiffers(f"chunk {seen} of {wanted} is missing or damaged")
        try:
            state.load(decoder.decode(chunk.entry))
        except UnknownTable as error:
            if gone is None:
                raise
            gone.take(chunk.entry, error)
        seen += 1
        if watch is not None:
            watch.chunk(data)
    if seen != wanted:
        raise FullDiffers(f"{seen} of {wanted} chunks are there")
    if gone is not None:
        gone.require_none()
