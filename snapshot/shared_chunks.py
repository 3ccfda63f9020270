"""Decides which full snapshots share chunks: they write only the keys that changed since the one before (rule S7).

Full snapshots that share chunks are a family. All have one id. Their chunks are numbered through, so that each has the
chunks of the one before and maybe more. A later chunk replaces or deletes rows of an earlier one, as a delta does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

import msgspec

from statehold.common.decoding import UNREADABLE
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord, FullRef, Manifest, UnknownTable
from statehold.state.changed_keys import ChangedKeys
from statehold.state.digest import from_bytes
from statehold.state.state import State

#: rows of a family for each key of the state. More would cost a restore more than a whole full snapshot saves
_MOST_ROWS: Final = 1.5
#: keys that may change in any state
_FEW: Final = 1000
_raw_entry = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw], list[bytes | None]]).decode


class Shared(NamedTuple):
    """The full snapshot whose chunks the next one shares, and the keys that changed since it began."""

    manifest: Manifest
    ref: FullRef
    changed: ChangedKeys


class KnownChunks(NamedTuple):
    """A full snapshot that was read completely: its manifest, and the manifest's offset."""

    manifest: Manifest
    offset: int


class UndeclaredRows:
    """The rows in shared chunks that this code cannot load, until a later chunk deletes them.

    A table without keys may leave the code, or get keys of another type, although an earlier chunk has rows of it.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, bytes], UnknownTable] = {}

    def take(self, entry: msgspec.Raw, error: UnknownTable) -> None:
        """Take the next chunk that raised this error. :raises frame.BadFrame: the bytes are damaged."""
        try:
            table, keys, values = _raw_entry(entry)
        except UNREADABLE as damage:
            raise frame.BadFrame(f"entry: {damage}") from damage
        for key, value in zip(map(bytes, keys), values, strict=False):
            if value is None:
                self._rows.pop((table, key), None)
            else:
                self._rows[table, key] = error

    def require_none(self) -> None:
        """:raises UnknownTable: rows remain."""
        for error in self._rows.values():
            raise error


def newest_of_families(refs: Iterable[FullRef]) -> tuple[FullRef, ...]:
    """Return the first reference to each family, because damage of a shared chunk costs all of it (rule C6)."""
    found: dict[int, FullRef] = {}
    for ref in refs:
        found.setdefault(ref.low, ref)
    return tuple(found.values())


def most_rows(keys: int) -> int:
    """Return how many rows the chunks of a family may have, if the state has this number of keys."""
    return max(_FEW, round(_MOST_ROWS * keys))


class ChunkSharing:
    """Used by the partition's thread. After an abandoned full snapshot the next one is whole.

    The chunks of an abandoned one may be written in part, and may still be on their way, with numbers that the next one
    of the family would use, too.
    """

    def __init__(self, state: State, most: int) -> None:
        """`most`: full snapshots in a row that share the chunks of one."""
        self._state, self._most = state, most
        self._newest: tuple[Manifest, FullRef] | None = None
        self._members = 0

    def begin(self, record: CommitRecord, refs: Collection[FullRef]) -> Shared | None:
        """Begin a full snapshot of the state at this commit record. Return what it shares; None: it is whole.

        `refs` are the kept full snapshots: a family of which none is kept may be damaged, or deleted.
        """
        newest, self._newest = self._newest, None
        changed = self._state.changed
        self._state.changed = None
        if record.format < frame.SHARED:
            return None
        most = most_rows(record.keys)
        self._state.changed = ChangedKeys(from_bytes(record.digest), max(_FEW, most - record.keys))
        if newest is None or changed is None or changed.crowded or self._members >= self._most:
            self._members = 0
            return None
        manifest, ref = newest
        kept = any(each.low == ref.low for each in refs)
        if not kept or not manifest.checksums or manifest.loads + changed.count > most:
            self._members = 0
            return None
        self._members += 1
        return Shared(manifest, ref, changed)

    def written(self, manifest: Manifest, ref: FullRef) -> None:
        """Take note of a full snapshot that is complete."""
        self._newest = manifest, ref

    def abandoned(self) -> None:
        """Take note that a full snapshot was begun and is not complete."""
        self._newest = self._state.changed = None
