"""Finds commit records, and full snapshots that no commit record refers to (requirement B6, rules S4-S6).

It reads single windows of a log from the end, so that it searches gigabytes of full snapshots in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from statehold.common.version import __version__
from statehold.errors import NewerFormat, TornTransaction
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import COMPACTION, Chunk, CommitRecord, FullRef, Manifest

_WINDOW: Final = 64
_GROWTH: Final = 8


class LocatedManifest(NamedTuple):
    """A manifest and its offset."""

    offset: int
    manifest: Manifest

    @property
    def ref(self) -> FullRef:
        manifest = self.manifest
        low = manifest.low if manifest.low >= 0 else self.offset
        return FullRef(low, self.offset, manifest.first, manifest.through, manifest.increment)


class LocatedMark(NamedTuple):
    """A commit record and its offset."""

    offset: int
    mark: CommitRecord


def last_mark(reader: Reader, topic: str, partition: int) -> CommitRecord | None:
    """Search back from the end for the newest commit record; return None if the partition holds none.

    Fence first, or read only up to the last stable offset: otherwise the log may end within its owner's transaction.

    :raises frame.BadFrame: a record is foreign or damaged. :raises TornTransaction: a header follows the commit record.
    :raises NewerFormat: a newer statehold has written here.
    """
    start, end = reader.bounds(topic, partition)
    step, upper, followed_by = _WINDOW, end, -1
    while upper > start:
        lower = max(start, upper - step)
        found, follower = None, -1
        for batch in reader.read(topic, partition, lower, upper):
            for message in batch:
                try:
                    kind = frame.kind_of(message.value())
                except frame.UnknownFormat as error:
                    raise newer_format(reader, topic, partition, message.offset() or 0, error) from error
                if kind not in records.INCREMENT_KINDS:
                    raise frame.BadFrame(f"kind {kind!r} at offset {message.offset()} does not belong on {topic}")
                if kind == b"M":
                    found, follower = message.value(), -1
                elif follower < 0:
                    follower = message.offset() or 0
        followed_by = follower if follower >= 0 else followed_by
        if found is not None:
            mark = records.unpack(found)
            assert isinstance(mark, CommitRecord)
            if followed_by >= 0:
                raise TornTransaction(
                    f"records of transaction {mark.n + 1} are committed without its commit record: a torn commit. "
                    f"Nothing was changed. Next: see TornTransaction in the runbook, and `statehold repair rebase "
                    f"--help`",
                    topic=topic,
                    partition=partition,
                    position=followed_by,
                )
            return mark
        upper, step = lower, step * _GROWTH
    return None


def newer_format(reader: Reader, topic: str, partition: int, offset: int, error: frame.UnknownFormat) -> NewerFormat:
    """Return the error for a record of an unknown format at `offset`; it names the writer if that is known."""
    writer = f"a release of statehold whose format is {error.version}"
    for batch in reader.read(topic, partition, offset, reader.bounds(topic, partition)[1]):
        for message in batch:
            writer = records.foreign_writer(message.value()) or writer
    return NewerFormat(
        f"written in format {error.version} by {writer}; this is statehold {__version__}, which reads formats "
        f"{frame.OLDEST} to {frame.NEWEST}. The upgrade was finished there, so there is no way back. Nothing was "
        f"changed. Next: run that release or a newer one",
        topic=topic,
        partition=partition,
        position=offset,
    )


def manifest_at(reader: Reader, place: Place, offset: int) -> LocatedManifest | None:
    """Return the manifest at this offset of the snapshot topic; None if it is gone, damaged or another record."""
    start, end = reader.bounds(place.names.snapshot, place.partition)
    if not start <= offset < end:
        return None
    return next(_manifests(reader, place, offset, offset + 1), None)


def compactions(reader: Reader, place: Place, known: int) -> Iterator[LocatedManifest]:
    """Yield the full snapshots of compactions above offset `known`, newest first.

    A worker's full snapshot counts only if a commit record refers to it (rule S6). `known` is the newest manifest that
    the last commit record refers to, or -1. The first one found is usually the last record of the topic, unless a
    worker has begun a full snapshot since.
    """
    start, upper = reader.bounds(place.names.snapshot, place.partition)
    start, step = max(start, known + 1), 1
    while upper > start:
        lower = max(start, upper - step)
        found = list(_manifests(reader, place, lower, upper))
        yield from (each for each in reversed(found) if each.manifest.maker == COMPACTION)
        upper, step = lower, step * _GROWTH


def published(reader: Reader, place: Place, known: int) -> Iterator[LocatedManifest]:
    """Yield as `compactions`, but find older full snapshots by the chunks of newer ones, not by reading all records.

    The rest of the topic is searched only for a caller that asks for more.
    """
    yielded: set[int] = set()
    for newest in compactions(reader, place, known):
        found: LocatedManifest | None = newest
        while found is not None and found.offset not in yielded and found.offset > known:
            yielded.add(found.offset)
            if found.manifest.maker == COMPACTION:
                yield found
            found = predecessor(reader, place, found)


def predecessor(reader: Reader, place: Place, found: LocatedManifest) -> LocatedManifest | None:
    """Return the newest full snapshot that the maker of this one knew; its first chunk names it (rule S5)."""
    if found.manifest.low < 0:
        return None
    try:
        for batch in reader.read(place.names.snapshot, place.partition, found.manifest.low, found.manifest.low + 1):
            for message in batch:
                record = records.unpack(message.value())
                if isinstance(record, Chunk) and record.newest >= 0:
                    return manifest_at(reader, place, record.newest)
    except (OutOfRange, frame.BadFrame):
        return None  # its first chunk is gone or damaged, so the full snapshot is unusable too
    return None


def newest_mark(
    reader: Reader, place: Place, wanted: Callable[[CommitRecord], bool], end: int | None = None
) -> LocatedMark | None:
    """Return the newest commit record below `end` for which `wanted` is true; search back from there.

    :raises frame.BadFrame, OutOfRange:
    """
    start, upper = reader.bounds(place.names.changelog, place.partition)
    upper, step = upper if end is None else min(upper, end), _WINDOW
    while upper > start:
        lower, best = max(start, upper - step), None
        for located in _marks(reader, place, lower, upper):
            best = located if wanted(located.mark) else best
        if best is not None:
            return best
        upper, step = lower, step * _GROWTH
    return None


def oldest_mark(
    reader: Reader, place: Place, wanted: Callable[[CommitRecord], bool], start: int = 0
) -> LocatedMark | None:
    """Return the oldest kept commit record from offset `start` on for which `wanted` is true; read until there is one.

    :raises frame.BadFrame, OutOfRange:
    """
    low, end = reader.bounds(place.names.changelog, place.partition)
    marks = _marks(reader, place, max(low, start), end)
    return next((located for located in marks if wanted(located.mark)), None)


def end_of(reader: Reader, place: Place, inside: Callable[[CommitRecord], bool]) -> int:
    """Return an offset before which commit records are `inside` and after which they are not; found by bisection.

    `inside` must be true for older commit records if it is true for newer ones.
    """
    low, high = reader.bounds(place.names.changelog, place.partition)
    end = high
    while low < high:
        middle = (low + high) // 2
        located = next(_marks(reader, place, middle, end), None)
        if located is None or not inside(located.mark):
            high = middle
        else:
            low = located.offset + 1
    return low


def _marks(reader: Reader, place: Place, start: int, end: int) -> Iterator[LocatedMark]:
    for batch in reader.read(place.names.changelog, place.partition, start, end):
        for message in batch:
            data = message.value()
            if frame.kind_of(data) == b"M":
                mark = records.unpack(data)
                assert isinstance(mark, CommitRecord)
                yield LocatedMark(message.offset() or 0, mark)


def _manifests(reader: Reader, place: Place, start: int, end: int) -> Iterator[LocatedManifest]:
    """Yield the readable manifests."""
    for batch in reader.read(place.names.snapshot, place.partition, start, end):
        for message in batch:
            data = message.value()
            try:
                if frame.kind_of(data) == b"F":
                    record = records.unpack(data)
                    assert isinstance(record, Manifest)
                    yield LocatedManifest(message.offset() or 0, record)
            except frame.BadFrame:
                continue
