"""Finds commit records, and full snapshots that no commit record refers to (requirement B6, rules S4-S6).

It reads single windows of a log from the end, so that it searches gigabytes of full snapshots in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from statehold.api.record import Message
from statehold.common.version import __version__
from statehold.errors import DamagedIncrement, NewerFormat, NoCommitRecord, TornTransaction
from statehold.ports import OutOfRange, Reader
from statehold.snapshot import full_listing
from statehold.snapshot.damaged_batches import read_around_damage
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import COMPACTION, Chunk, CommitRecord, FullRef, Manifest

_WINDOW: Final = 64
_GROWTH: Final = 8
#: Records before a manifest among which its last chunk is looked for, because another writer's may be between.
_BEFORE: Final = 4


class LocatedManifest(NamedTuple):
    """A manifest and its offset."""

    offset: int
    manifest: Manifest

    @property
    def ref(self) -> FullRef:
        manifest = self.manifest
        low = manifest.low if manifest.low >= 0 else self.offset
        if manifest.family >= 0:
            low = min(low, manifest.family)
        return FullRef(low, self.offset, manifest.first, manifest.through, manifest.increment)


class LocatedCommitRecord(NamedTuple):
    """A commit record and its offset."""

    offset: int
    commit_record: CommitRecord


def last_commit_record(reader: Reader, topic: str, partition: int) -> CommitRecord | None:
    """Search back from the end for the newest commit record; return None if the partition holds none.

    Fence first, or read only up to the last stable offset: otherwise the log may end within its owner's transaction.

    A damaged record batch before it does no harm, nor does an owner that truncates the log meanwhile.

    :raises frame.BadFrame: a record is foreign or damaged. :raises TornTransaction: a header follows the commit record.
    :raises NewerFormat: a newer statehold has written here. :raises DamagedIncrement: a record batch after the last
        readable commit record is damaged; it may contain newer ones.
    """
    bounds = reader.bounds(topic, partition)
    while True:
        try:
            return _search_back(reader, topic, partition, *bounds)
        except OutOfRange:
            before, bounds = bounds, reader.bounds(topic, partition)
            if bounds[0] <= before[0]:  # because only a truncation explains the error
                raise


def _search_back(reader: Reader, topic: str, partition: int, start: int, end: int) -> CommitRecord | None:
    step, upper, followed_by = _WINDOW, end, -1
    while upper > start:
        lower = max(start, upper - step)
        try:
            found, follower, damage = _newest_of_all(
                reader, topic, partition, reader.read(topic, partition, lower, upper)
            )
        except DamagedIncrement:
            batches = read_around_damage(reader, topic, partition, lower, upper)
            found, follower, damage = _newest_of_all(reader, topic, partition, batches)
        followed_by = follower if follower >= 0 else followed_by
        if found is not None:
            commit_record = records.unpack(found)
            assert isinstance(commit_record, CommitRecord)
            if followed_by >= 0:
                raise TornTransaction(
                    f"records of transaction {commit_record.n + 1} are committed without its commit record: a torn "
                    "commit. Nothing was changed. Next: see TornTransaction in the runbook, and `statehold repair "
                    "rebase --help`",
                    topic=topic,
                    partition=partition,
                    position=followed_by,
                )
            return commit_record
        if damage is not None:
            raise damage
        upper, step = lower, step * _GROWTH
    return None


def require_commit_record(reader: Reader, topic: str, partition: int, doing: str) -> CommitRecord:
    """Return the newest commit record. `doing` names the caller's work in the error. Raises as `last_commit_record`.

    :raises NoCommitRecord: the partition holds none.
    """
    found = last_commit_record(reader, topic, partition)
    if found is None:
        text = f"{doing}: there is no commit record. Next: run `statehold topics create` if this is a first start"
        raise NoCommitRecord(text, topic=topic, partition=partition)
    return found


def _newest_of_all(
    reader: Reader, topic: str, partition: int, batches: Iterable[Sequence[Message] | DamagedIncrement]
) -> tuple[bytes | None, int, DamagedIncrement | None]:
    """Return the newest commit record of the batches, the offset of the record that follows it or -1, and any damage.

    What lies before a damaged record batch does not count, because the batch may contain newer records.
    """
    found, follower, damage = None, -1, None
    for batch in batches:
        if isinstance(batch, DamagedIncrement):
            found, follower, damage = None, -1, batch
            continue
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
    return found, follower, damage


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
    """Return the newest full snapshot that the maker of this one knew; its first own chunk names it (rule S5)."""
    offset = offset_before(reader, place, found)
    return None if offset is None or offset < 0 else manifest_at(reader, place, offset)


def offset_before(reader: Reader, place: Place, found: LocatedManifest) -> int | None:
    """Return the offset of the newest manifest that the maker of this one knew, -1 without one; None: unknown."""
    manifest, topic = found.manifest, place.names.snapshot
    if manifest.low < 0:
        return None
    start, end = manifest.low, manifest.low + 1
    if manifest.shared:  # its own chunks, if it has any, are before its manifest
        start, end = max(manifest.low, found.offset - _BEFORE), found.offset
    try:
        messages = [each for batch in reader.read(topic, place.partition, start, end) for each in batch]
        for message in reversed(messages):
            record = records.unpack(message.value())
            if isinstance(record, Chunk) and record.full == manifest.full:
                return record.newest
            if isinstance(record, Manifest) and record.full == manifest.full:
                return message.offset()
    except (OutOfRange, frame.BadFrame, DamagedIncrement):
        pass  # its chunk is gone or damaged, so the full snapshot is unusable too
    return None


def newest_commit_record(
    reader: Reader, place: Place, wanted: Callable[[CommitRecord], bool], end: int | None = None
) -> LocatedCommitRecord | None:
    """Return the newest commit record below `end` for which `wanted` is true; search back from there.

    :raises frame.BadFrame, OutOfRange: :raises DamagedIncrement: a damaged record batch may contain it.
    """
    start, upper = reader.bounds(place.names.changelog, place.partition)
    upper, step = upper if end is None else min(upper, end), _WINDOW
    while upper > start:
        lower, best, damage = max(start, upper - step), None, None
        for batch in read_around_damage(reader, place.names.changelog, place.partition, lower, upper):
            if isinstance(batch, DamagedIncrement):
                best, damage = None, batch
                continue
            for located in _commit_records_in(batch):
                best = located if wanted(located.commit_record) else best
        if best is not None:
            return best
        if damage is not None:
            raise damage
        upper, step = lower, step * _GROWTH
    return None


def oldest_commit_record(
    reader: Reader, place: Place, wanted: Callable[[CommitRecord], bool], start: int = 0
) -> LocatedCommitRecord | None:
    """Return the oldest kept commit record from offset `start` on for which `wanted` is true; read until there is one.

    :raises frame.BadFrame, OutOfRange:
    """
    low, end = reader.bounds(place.names.changelog, place.partition)
    commit_records = _commit_records(reader, place, max(low, start), end)
    return next((located for located in commit_records if wanted(located.commit_record)), None)


def end_of(reader: Reader, place: Place, inside: Callable[[CommitRecord], bool]) -> int:
    """Return an offset before which commit records are `inside` and after which they are not; found by bisection.

    `inside` must be true for older commit records if it is true for newer ones.
    """
    low, high = reader.bounds(place.names.changelog, place.partition)
    end = high
    while low < high:
        middle = (low + high) // 2
        located = next(_commit_records(reader, place, middle, end), None)
        if located is None or not inside(located.commit_record):
            high = middle
        else:
            low = located.offset + 1
    return low


def _commit_records(reader: Reader, place: Place, start: int, end: int) -> Iterator[LocatedCommitRecord]:
    for batch in reader.read(place.names.changelog, place.partition, start, end):
        yield from _commit_records_in(batch)


def _commit_records_in(batch: Sequence[Message]) -> Iterator[LocatedCommitRecord]:
    for message in batch:
        data = message.value()
        if frame.kind_of(data) == b"M":
            commit_record = records.unpack(data)
            assert isinstance(commit_record, CommitRecord)
            yield LocatedCommitRecord(message.offset() or 0, commit_record)


def _manifests(reader: Reader, place: Place, start: int, end: int) -> Iterator[LocatedManifest]:
    """Yield the readable manifests."""
    for offset, found in full_listing.manifests(reader, place, start, end):
        if not isinstance(found, str):
            yield LocatedManifest(offset, found)
