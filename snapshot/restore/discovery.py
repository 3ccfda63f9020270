"""Finds what others have left on the topics: marks by what they say, fulls that no mark refers to (rules S4-S6, 1.4).

Reads single windows of a log from its end, so that a service with gigabytes of fulls is looked through in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Chunk, FullRef, Manifest, Mark

#: who makes the fulls of `statehold compact`
COMPACTION: Final = "compaction"
_WINDOW: Final = 64
_GROWTH: Final = 8


class Found(NamedTuple):
    """A manifest and where it lies."""

    offset: int
    manifest: Manifest

    @property
    def ref(self) -> FullRef:
        manifest = self.manifest
        low = manifest.low if manifest.low >= 0 else self.offset
        return FullRef(low, self.offset, manifest.first, manifest.through, manifest.increment)


class Located(NamedTuple):
    """A mark and where it lies."""

    offset: int
    mark: Mark


def manifest_at(reader: Reader, place: Place, offset: int) -> Found | None:
    """The manifest at this offset of the full topic; None when it is gone, damaged or none."""
    start, end = reader.bounds(place.names.snapshot, place.partition)
    if not start <= offset < end:
        return None
    return next(_manifests(reader, place, offset, offset + 1), None)


def compactions(reader: Reader, place: Place, known: int) -> Iterator[Found]:
    """The fulls of compactions above offset `known`, newest first: a worker's own count only where a mark refers to
    them (rule S6).

    `known` is the newest manifest that the last mark refers to, or -1. The first one found is usually the last record
    of the topic; only what a worker has begun since has to be read over.
    """
    start, upper = reader.bounds(place.names.snapshot, place.partition)
    start, step = max(start, known + 1), 1
    while upper > start:
        lower = max(start, upper - step)
        found = list(_manifests(reader, place, lower, upper))
        yield from (each for each in reversed(found) if each.manifest.maker == COMPACTION)
        upper, step = lower, step * _GROWTH


def published(reader: Reader, place: Place, known: int) -> Iterator[Found]:
    """As `compactions`, but older ones are told by the chunks of newer ones, so that nothing has to be read over; only
    whoever goes on asking after that has the rest of the topic looked through.
    """
    told: set[int] = set()
    for newest in compactions(reader, place, known):
        found: Found | None = newest
        while found is not None and found.offset not in told and found.offset > known:
            told.add(found.offset)
            if found.manifest.maker == COMPACTION:
                yield found
            found = predecessor(reader, place, found)


def predecessor(reader: Reader, place: Place, found: Found) -> Found | None:
    """The newest full that the maker of this one knew, told by its first chunk (rule S5)."""
    if found.manifest.low < 0:
        return None
    try:
        for batch in reader.read(place.names.snapshot, place.partition, found.manifest.low, found.manifest.low + 1):
            for message in batch:
                record = records.unpack(message.value())
                if isinstance(record, Chunk) and record.newest >= 0:
                    return manifest_at(reader, place, record.newest)
    except (OutOfRange, frame.BadFrame):
        return None  # its first chunk is gone or damaged, so the full is none either
    return None


def newest_mark(reader: Reader, place: Place, wanted: Callable[[Mark], bool], end: int | None = None) -> Located | None:
    """The newest mark below `end` of which `wanted` holds; found by walking back from there.

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


def oldest_mark(reader: Reader, place: Place, wanted: Callable[[Mark], bool], start: int = 0) -> Located | None:
    """The oldest kept mark from offset `start` on of which `wanted` holds; reads on until there is one.

    :raises frame.BadFrame, OutOfRange:
    """
    low, end = reader.bounds(place.names.changelog, place.partition)
    marks = _marks(reader, place, max(low, start), end)
    return next((located for located in marks if wanted(located.mark)), None)


def end_of(reader: Reader, place: Place, inside: Callable[[Mark], bool]) -> int:
    """An offset before which marks are `inside` and from which on they are not; found by bisection.

    `inside` must hold for older marks if it holds for newer ones.
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


def _marks(reader: Reader, place: Place, start: int, end: int) -> Iterator[Located]:
    for batch in reader.read(place.names.changelog, place.partition, start, end):
        for message in batch:
            data = message.value()
            if frame.kind_of(data) == b"M":
                mark = records.unpack(data)
                assert isinstance(mark, Mark)
                yield Located(message.offset() or 0, mark)


def _manifests(reader: Reader, place: Place, start: int, end: int) -> Iterator[Found]:
    """What cannot be read is none."""
    for batch in reader.read(place.names.snapshot, place.partition, start, end):
        for message in batch:
            data = message.value()
            try:
                if frame.kind_of(data) == b"F":
                    record = records.unpack(data)
                    assert isinstance(record, Manifest)
                    yield Found(message.offset() or 0, record)
            except frame.BadFrame:
                continue
