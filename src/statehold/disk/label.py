"""The label of a partition's files: the commit record whose state they hold, and what a start needs besides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from statehold.snapshot.format import records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.estimate import Workload
from statehold.state.digest import hash64

#: changes with the form of keys, rows or labels
FORMAT: Final = 1


class StoreLabel(msgspec.Struct, frozen=True):
    """Written in one batch with the state that it describes (rule X2)."""

    format: int
    #: of the code's tables and their types
    fingerprint: int
    #: packed
    commit_record: bytes
    #: of the state in memory when it was written, 16 bytes
    digest: bytes
    #: rows of each table
    counts: dict[str, int]
    #: of a restore from the newest full snapshot
    unsaved_bytes: int = 0
    unsaved_keys: int = 0
    work: Workload = Workload()
    full_time: float = 0.0

    @property
    def record(self) -> CommitRecord:
        found = records.unpack(self.commit_record)
        assert isinstance(found, CommitRecord)
        return found


_decode: Final = msgspec.msgpack.Decoder(StoreLabel).decode
encode: Final = msgspec.msgpack.Encoder().encode


def decoded(data: bytes) -> StoreLabel | None:
    """Return the label; None if another release wrote it, or it is damaged."""
    try:
        found = _decode(data)
        return found if found.format == FORMAT and found.record else None
    except (msgspec.DecodeError, ValueError, AssertionError):
        return None


def fingerprint(place: Place, tables: Mapping[str, tuple[bool, Sequence[int]]]) -> int:
    """Return the hash of the tables, their versions and their types.

    `tables`: of each whether it is on disk, and the older versions that the code reads.
    """
    known = {name: [*about, place.schemas.get(name, 1)] for name, about in tables.items()}
    types = {name: place.types[name] for name in sorted(place.types)}
    return hash64(msgspec.json.encode([FORMAT, sorted(known.items()), types]))
