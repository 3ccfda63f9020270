"""Reads stretches of the topics, or a full snapshot in a store, on an executor. Does not use Spark.

The reader is that of a restore: it sees committed records only, checks checksums, and knows every login that the
service knows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Final
from zipimport import zipimporter

import msgspec
import pyarrow as pa

from statehold.errors import DamagedIncrement
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Manifest
from statehold.snapshot.spark.fold.newest import KeyBlock, Newest
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.fold.report import Scan, encode_report
from statehold.snapshot.spark.fold.unpack import Chunks, Increments
from statehold.snapshot.store.base import SegmentGone
from statehold.snapshot.store.fetch import stored_frames

#: Makes a reader that ends at the last stable offset; called on an executor, so it is pickled.
ReaderOf = Callable[[], Reader]
#: Records of one poll; few, because chunks are large.
MOST: Final = 100


class Stretch(msgspec.Struct, frozen=True):
    """Records that one task reads in order: offsets of a topic partition, or the chunks of `stored`."""

    scan: Scan
    number: int
    topic: str
    start: int = 0
    end: int = 0
    #: Manifest of a full snapshot in a store; the stores to ask.
    stored: Manifest | None = None
    roots: tuple[str, ...] = ()


def stretches_of(plan: FoldPlan) -> Iterator[list[Stretch]]:
    """Yield the stretches of each task that reads a part of the plan: of the changelog, and of the base's chunks."""
    place, base, scan = plan.place, None if plan.shares else plan.base, scan_of(plan)
    starts = [plan.start, *(cut.offset + 1 for cut in plan.cuts), plan.end]
    found: list[list[Stretch]] = [[] for _ in range(max(len(starts), scan.chunk_stretches + 1) - 1)]
    if plan.start < plan.end:
        for number, (start, end) in enumerate(pairwise(starts)):
            found[number].append(Stretch(scan, number, place.names.changelog, start, end))
    if base is not None and base.manifest.store and base.manifest.checksums:
        found[-1].append(Stretch(scan, 0, place.names.snapshot, stored=base.manifest, roots=place.roots))
    elif base is not None and base.manifest.checksums:
        starts = [base.manifest.low, *plan.chunk_cuts, base.offset]
        for number, (start, end) in enumerate(pairwise(starts)):
            found[number].append(Stretch(scan, number, place.names.snapshot, start, end))
    yield from filter(None, found)


def scan_of(plan: FoldPlan) -> Scan:
    base = plan.base
    return Scan(
        partition=plan.partition,
        full=base.manifest.full if base else "",
        chunks=len(base.manifest.checksums) if base else 0,
        first=plan.first,
        lineage=plan.goal.commit_record.lineage,
        topic=plan.place.names.changelog,
        cuts=tuple(each.commit_record.n for each in plan.cuts),
        chunk_stretches=len(plan.chunk_cuts) + 1,
    )


def read_stretches(
    reader_of: ReaderOf, stretches: Iterable[Stretch], newest: Callable[[], Newest] = Newest
) -> Iterator[KeyBlock]:
    """Read them one after the other; yield the newest values of each, and its report.

    A damaged batch or a record that is gone becomes a finding. Blocks.

    :raises KafkaTrouble, RestoreTimeout, HangingTransaction: as `Reader.read`. :raises StoreTrouble, UnsafeLocation: as
        `stored_frames`.
    """
    with closing(reader_of()) as reader:
        for stretch in stretches:
            taking = taking_of(stretch, newest())
            yield from blocks_of(stretch, taking, fed(reader, stretch, taking))


def taking_of(stretch: Stretch, newest: Newest) -> Increments | Chunks:
    """Return what takes in the records of a stretch."""
    kind = Increments if stretch.topic == stretch.scan.topic else Chunks
    return kind(stretch.scan, stretch.number, newest)


def fed(reader: Reader, stretch: Stretch, taking: Increments | Chunks) -> Iterator[None]:
    """Feed the records of a stretch to `taking`, and yield after each. Raises as `read_stretches`."""
    try:
        for offset, data in _records(reader, stretch):
            taking.feed(offset, data)
            yield
    except DamagedIncrement as error:
        taking.report.finding, taking.report.damaged = taking.report.finding or str(error), True
    except OutOfRange as error:
        taking.report.finding, taking.report.overtaken = f"the records were truncated: {error}", True


def blocks_of(stretch: Stretch, taking: Increments | Chunks, feeding: Iterator[None]) -> Iterator[KeyBlock]:
    """Yield the newest values of a stretch when they are many and at its end, and its report."""
    partition, number = stretch.scan.partition, stretch.number
    for _ in feeding:
        if taking.newest.crowded:
            rank = taking.rank
            for bucket, packed in taking.newest.take():
                yield KeyBlock(partition, bucket, rank, number, packed)
    rank, report = taking.rank, taking.done()
    if not report.finding:
        for bucket, packed in taking.newest.take():
            yield KeyBlock(partition, bucket, rank, number, packed)
    yield KeyBlock(partition, -1, rank, number, encode_report(report))


def _records(reader: Reader, stretch: Stretch) -> Iterator[tuple[int, bytes | None]]:
    if stretch.stored is not None:
        yield from enumerate(chunks_in_store(stretch.stored, stretch.roots))
        return
    for batch in reader.read(stretch.topic, stretch.scan.partition, stretch.start, stretch.end, MOST):
        for message in batch:
            yield message.offset() or 0, message.value()


def chunks_in_store(manifest: Manifest, roots: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the chunks of a full snapshot in a store up to the first that is missing or damaged.

    The comparison with the manifest reports that there are too few.
    """
    try:
        yield from stored_frames(manifest, roots)
    except (SegmentGone, frame.BadFrame):
        return


def chunks_of(reader: Reader, place: Place, manifest: Manifest, end: int) -> Iterator[bytes]:
    """Yield what lies where the chunks of a full snapshot are: in its store, or between its first one and `end`.

    :raises DamagedIncrement, OutOfRange: as `Reader.read`.
    """
    if manifest.store:
        yield from chunks_in_store(manifest, place.roots)
        return
    for batch in reader.read(place.names.snapshot, place.partition, manifest.low, end, MOST):
        yield from filter(None, (message.value() for message in batch))


def forget_zip_finders() -> None:
    """Make the next task of this Python worker start in 0.01 s instead of 0.12 s.

    Spark invalidates the finders of modules at each task's start. Those of its own zip file, one for each package in
    it, then read the whole directory of the file again. Imports make new finders where they need one.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


def forget_pandas() -> None:
    """Make pyarrow work without pandas in this Python worker, because the import takes a second of a core.

    With its first array pyarrow looks whether pandas is there, and imports it; it never looks again. No task uses it.
    """
    finder: Any = SimpleNamespace(find_spec=_without_pandas)
    sys.meta_path.insert(0, finder)
    try:
        pa.array([""])
    finally:
        sys.meta_path.remove(finder)


def _without_pandas(name: str, *_: object) -> None:
    if name == "pandas":
        raise ModuleNotFoundError(name)
