"""Converts chunks and deltas to rows on the executors, with `mapInArrow` over Kafka records.

A task reads one stretch of one topic partition in order, checks its chain (`Chain`) and adds one row with a report.
Incomplete transactions give no rows. Of a key only the newest value that the task has read becomes a row (`Newest`), so
the JVM processes about as many rows as there are keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa

from statehold.errors import PartitionError
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.records import Chunk
from statehold.snapshot.spark.fold.newest import CHUNKS, REPORT, WINDOW, Newest, rows_of
from statehold.snapshot.spark.fold.report import Scan, TaskReport, encode_report

#: (partition, table, key as msgpack, value as stored or null, rank: see `Newest.take`).
SCHEMA: Final = "partition int, table string, key binary, value binary, rank long"


class Unpacker:
    """Function for `mapInArrow` from columns topic, partition, offset, value to `SCHEMA`; pickled by reference."""

    def __init__(self, scans: Mapping[int, Scan], window: int = WINDOW) -> None:
        self._scans, self._window = scans, window

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stretches = _Stretches(self._scans, self._window)
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")]
            for topic, partition, offset, value in zip(*columns, strict=True):
                stretch = stretches.of(topic, partition, offset)
                stretch.feed(offset, value)
                if stretch.rows.crowded:
                    yield from stretch.rows.take(stretch.rank)
        for each in stretches.open.values():
            yield from each.rows.take(each.rank)
            report = each.done()
            key = f"{report.kind} {report.stretch}".encode()  # unique, because the fold keeps one row per key
            yield rows_of(report.partition, REPORT, [key], [encode_report(report)], -1)


class _Increments:
    """A stretch of a changelog partition: complete transactions after the full snapshot become rows."""

    def __init__(self, scan: Scan, stretch: int, window: int) -> None:
        self._scan, self._stretch = scan, stretch
        self._chain = Chain(scan.topic, scan.partition)
        after = scan.after(stretch)
        if scan.full or stretch:
            self._chain.last, self._chain.lineage = after, scan.lineage
        elif after >= 0:
            self._chain.last = after
        self.rows = Newest(scan.partition, window)
        self.report = TaskReport(
            partition=scan.partition, kind="increments", stretch=stretch, of=len(scan.cuts) + 1, after=after
        )

    @property
    def rank(self) -> int:
        return self.report.last

    def feed(self, offset: int, data: bytes | None) -> None:
        report = self.report
        if report.finding:
            return
        try:
            report.size += len(data or b"")
            record = records.unpack(data)
            increment = self._chain.feed(offset, record)
            if increment is not None:
                self._take(increment)
        except (PartitionError, frame.BadFrame) as error:
            report.finding = str(error)

    def _take(self, increment: Increment) -> None:
        report, commit_record = self.report, increment.commit_record
        if report.last < 0 and not self._scan.full and self._stretch == 0:
            report.finding = _beginning(increment)
        for part in increment.parts:
            for raw in part.entries:
                report.entries += self.rows.add(raw)
        report.last, report.header = commit_record.n, increment.offset
        report.digest, report.keys = commit_record.digest, commit_record.keys

    def done(self) -> TaskReport:
        try:
            self._chain.finish(-1)
        except PartitionError as error:
            self.report.finding = self.report.finding or str(error)
        return self.report


def _beginning(increment: Increment) -> str:
    """Check that the deltas begin with an empty state: an initial commit or a replacement without a full snapshot."""
    n, adopt = increment.commit_record.n, increment.adopt
    if adopt is not None and adopt.base is not None:
        return f"the full snapshot of state-replacement record {n} is unusable, and so is every later one"
    if n > 0 and adopt is None:
        return f"no full snapshot is usable, and the deltas begin with transaction {n}"
    return ""


class _Chunks:
    """A stretch of a snapshot partition: the base's chunks in order, without duplicates and other chunks."""

    def __init__(self, scan: Scan, stretch: int) -> None:
        self._scan = scan
        self.rows, self.rank = Newest(scan.partition, CHUNKS), scan.first
        self.report = TaskReport(
            partition=scan.partition, kind="chunks", stretch=stretch, of=len(scan.chunk_cuts) + 1, begin=0
        )

    def feed(self, offset: int, data: bytes | None) -> None:
        report, scan = self.report, self._scan
        if report.finding or not data:
            return
        try:
            if frame.kind_of(data) != b"C":
                return
            chunk = records.unpack(data)
            assert isinstance(chunk, Chunk)
            if chunk.full != scan.full:
                return
            if report.stretch and not report.checksums:
                report.begin = chunk.i  # `gathered` checks the connection to the previous stretch
            seen = report.begin + len(report.checksums)
            if chunk.i < seen:
                return
            if chunk.i != seen:
                report.finding = f"chunk {seen} of {scan.chunks} is missing"
                return
            report.entries += self.rows.add(chunk.entry)
            report.size += len(data)
            report.checksums.append(frame.body_checksum(data))
        except frame.BadFrame as error:
            report.finding = f"offset {offset}: {error}"

    def done(self) -> TaskReport:
        return self.report


class _Stretches:
    """The stretches that a task reads: one, or several if it reads from a store."""

    def __init__(self, scans: Mapping[int, Scan], window: int) -> None:
        self._scans, self._window = scans, window
        self.open: dict[tuple[str, int, int], _Increments | _Chunks] = {}

    def of(self, topic: str, partition: int, offset: int) -> _Increments | _Chunks:
        scan = self._scans[partition]
        stretch = scan.stretch(topic, offset)
        found = self.open.get((topic, partition, stretch))
        if found is None:
            made = _Increments(scan, stretch, self._window) if topic == scan.topic else _Chunks(scan, stretch)
            found = self.open[topic, partition, stretch] = made
        return found
