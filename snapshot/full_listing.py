"""Lists the full snapshots of a partition, with the reasons why a restore could not use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from statehold.errors import DamagedIncrement
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.damaged_batches import read_around_damage
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, Manifest

_LATER_GONE: Final = "the transactions after it are gone"


class Full(msgspec.Struct, frozen=True):
    """A full snapshot on the topic: its manifest's offset, and the manifest if it can be read."""

    offset: int
    manifest: Manifest | None
    #: the last commit record refers to it, because its writer saw all of it acknowledged
    referred: bool
    #: why it cannot be a base for the last commit record; '' if it can
    finding: str = ""

    @property
    def ends(self) -> bool:
        """Return whether no later state can be built from it, because the transactions after it were deleted."""
        return self.finding.startswith(_LATER_GONE)

    @property
    def maker(self) -> str:
        return self.manifest.maker if self.manifest is not None else ""


def find(reader: Reader, place: Place, commit_record: CommitRecord | None, *, everything: bool = False) -> list[Full]:
    """Return the full snapshots of a partition, newest first.

    These are the ones that the commit record refers to, and those published since.
    `everything` reads the whole snapshot topic instead, which may be gigabytes.
    """
    topic, partition = place.names.snapshot, place.partition
    refs = {} if commit_record is None else {ref.offset: ref for ref in commit_record.full_snapshots}
    start, end = reader.bounds(topic, partition)
    found: dict[int, Manifest | str] = {}
    if not everything:
        for ref in refs.values():
            found[ref.offset] = _manifest_at(reader, place, ref.offset, start, end)
        start = max([start, *(offset + 1 for offset in refs)])
    found |= dict(manifests(reader, place, start, end))
    full_snapshots = [
        _judge(place, commit_record, offset, each, offset in refs, reader) for offset, each in found.items()
    ]
    return sorted(full_snapshots, key=_newest_first)


def manifests(reader: Reader, place: Place, start: int, end: int) -> Iterator[tuple[int, Manifest | str]]:
    """Yield the manifests between two offsets; a text in place of an unreadable one, and of a damaged record batch."""
    for batch in read_around_damage(reader, place.names.snapshot, place.partition, start, end):
        if isinstance(batch, DamagedIncrement):
            yield batch.position, str(batch)
            continue
        for message in batch:
            offset, data = message.offset() or 0, message.value()
            try:
                if frame.kind_of(data) == b"F":
                    record = records.unpack(data)
                    assert isinstance(record, Manifest)
                    yield offset, record
            except frame.BadFrame as error:
                if data is not None and data[1:2] == b"F":
                    yield offset, f"its manifest cannot be read: {error}"


def _manifest_at(reader: Reader, place: Place, offset: int, start: int, end: int) -> Manifest | str:
    if not start <= offset < end:
        return f"gone: the topic holds offsets {start} to {end}"
    try:
        for at, found in manifests(reader, place, offset, offset + 1):
            if at == offset:
                return found
    except OutOfRange:
        return "gone: truncated during the search"
    return f"there is no manifest at offset {offset}"


def _judge(
    place: Place, commit_record: CommitRecord | None, offset: int, found: Manifest | str, referred: bool, reader: Reader
) -> Full:
    if isinstance(found, str):
        return Full(offset, None, referred, found)
    finding = "" if commit_record is None else place.refuses(found, commit_record)
    start, _ = reader.bounds(place.names.snapshot, place.partition)
    if not finding and 0 <= found.low < start:
        finding = f"its first chunks are gone: the topic begins at {start}, the full snapshot at {found.low}"
    begin, _ = reader.bounds(place.names.changelog, place.partition)
    if not finding and not referred and found.increment < begin:
        # Its chunks may remain, because a newer one shares them (rule C6).
        finding = f"{_LATER_GONE}: the changelog begins at {begin}, they at {found.increment}"
    return Full(offset, found, referred, finding)


def _newest_first(full: Full) -> tuple[int, bool, int, int]:
    """Sort by the greatest S (rule S6). At the same S, one that the commit record refers to comes first."""
    found = full.manifest
    first, time = (found.first, found.time) if found is not None else (-1, 0)
    return -first, not full.referred, -time, -full.offset
