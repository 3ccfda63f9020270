"""A state as it is stored, without the handler's types: keys decoded from msgpack, values as bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from statehold.common.decoding import UNREADABLE
from statehold.ports import Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Chunk, Manifest, Part
from statehold.snapshot.full import FullUnusable, chunk_frames
from statehold.state.digest import MODULUS, table_digest
from statehold.state.partition_table import Changes

_decode = msgspec.msgpack.Decoder(tuple[str, list[Any], list[bytes | None]]).decode


class Contents:
    """The tables by name, and the digest, which every change updates."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Any, bytes]] = {}
        self.digest = 0

    @property
    def keys(self) -> int:
        return sum(map(len, self.tables.values()))

    @property
    def bytes(self) -> int:
        return sum(len(value) for table in self.tables.values() for value in table.values())

    def apply(self, changes: Changes) -> None:
        """Apply absolute values. None deletes a key; deleting an absent key changes nothing (rule D3)."""
        table = self.tables.setdefault(changes.table, {})
        old = {key: table[key] for key in changes.keys if key in table}
        new: dict[Any, bytes | None] = dict(zip(changes.keys, changes.values, strict=True))
        born = {key: value for key, value in new.items() if value is not None}
        before = table_digest(changes.table, list(old), old.values())
        after = table_digest(changes.table, list(born), born.values())
        self.digest = (self.digest + after - before) % MODULUS
        table.update(born)
        for key in old.keys() - born.keys():
            del table[key]

    def apply_parts(self, parts: tuple[Part, ...]) -> None:
        """Apply the entries of a delta. :raises frame.BadFrame: an entry is unreadable."""
        for part in parts:
            for raw in part.entries:
                self.apply(decoded(raw))


def decoded(raw: msgspec.Raw) -> Changes:
    """Decode an entry of a chunk or a delta.

    :raises frame.BadFrame: the bytes are not an entry.
    """
    try:
        table, keys, values = _decode(raw)
        keys = list(map(hashable, keys))
        hash(tuple(keys))
        if len(set(map(type, keys))) > 1:
            raise frame.BadFrame(f"table {table!r}: its keys have several types")
    except (TypeError, *UNREADABLE) as error:
        raise frame.BadFrame(f"entry: {error}") from error
    if len(keys) != len(values):
        raise frame.BadFrame(f"table {table!r}: {len(keys)} keys, {len(values)} values")
    return Changes(table, keys, values)


def hashable(key: Any) -> Any:
    """Turn lists into tuples, because msgpack has no tuples and a key cannot be a list."""
    return tuple(map(hashable, key)) if isinstance(key, list) else key


class Piece(msgspec.Struct, frozen=True):
    """One chunk: its contents, or its fault."""

    i: int
    offset: int
    changes: Changes | None
    fault: str = ""


def chunks(reader: Reader, place: Place, manifest: Manifest, end: int) -> Iterator[Piece]:
    """Yield the chunks of the manifest at offset `end`, in order. Missing or damaged chunks carry a fault.

    Skips duplicated chunks and chunks of other full snapshots, as a restore does.
    """
    seen, wanted = 0, len(manifest.checksums)
    if wanted == 0:
        return
    lost = "it is missing"
    try:
        for offset, data in _frames(reader, place, manifest, end):
            piece = _piece(offset, data, manifest, seen)
            if piece is None:
                continue
            yield from (Piece(i, -1, None, lost) for i in range(seen, piece.i))
            yield piece
            seen = piece.i + 1
    except (FullUnusable, frame.BadFrame) as error:
        lost = str(error)  # the store outside Kafka lacks a segment
    yield from (Piece(i, -1, None, lost) for i in range(seen, wanted))


def _frames(reader: Reader, place: Place, manifest: Manifest, end: int) -> Iterator[tuple[int, Any]]:
    """Yield the frames with their offsets; -1 for frames in a store outside Kafka.

    :raises FullUnusable: the store lacks a segment.
    """
    if manifest.low < 0:
        yield from ((-1, data) for data in chunk_frames(reader, place, manifest, end))
        return
    for batch in reader.read(place.names.snapshot, place.partition, manifest.low, end):
        for message in batch:
            yield message.offset() or 0, message.value()


def _piece(offset: int, data: Any, manifest: Manifest, seen: int) -> Piece | None:
    try:
        if frame.kind_of(data) != b"C":
            return None
        chunk = records.unpack(data)
        if not isinstance(chunk, Chunk) or chunk.full != manifest.full:
            return None
        if not seen <= chunk.i < len(manifest.checksums):
            return None
        if frame.body_checksum(data) != manifest.checksums[chunk.i]:
            return Piece(chunk.i, offset, None, "its checksum is not the manifest's")
        return Piece(chunk.i, offset, decoded(chunk.entry))
    except frame.BadFrame as error:
        return Piece(seen, offset, None, str(error))
