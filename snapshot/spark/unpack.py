"""Chunks and increments into rows, on the executors: `mapInArrow` over whole Kafka records, columns made at a time.

A task reads one range of one topic partition, in order, so a chain is checked where it is read (`Chain`), and what it
found leaves the task as one row of another kind: a report. Nothing of an incomplete transaction becomes a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, Final

import msgspec
import pyarrow as pa

from holdfast.errors import PartitionError
from holdfast.snapshot import frame, records
from holdfast.snapshot.chain import Chain, Increment
from holdfast.snapshot.records import Chunk, Manifest

#: (partition, table, key as msgpack, value as stored or null, rank = n, or S for a row of the base)
SCHEMA: Final = "partition int, table string, key binary, value binary, rank long"
_FLUSH_ROWS: Final = 20_000
_FLUSH_BYTES: Final = 32_000_000
#: the table name of a report: no table has it
REPORT: Final = ""

_entry = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw], list[bytes | None]]).decode


class Scan(msgspec.Struct, frozen=True):
    """What an executor needs to know of one partition's plan."""

    partition: int
    #: id of the base, '' without one
    full: str
    chunks: int
    first: int
    lineage: str
    topic: str


class Report(msgspec.Struct, kw_only=True):
    """What one task found in its range, for the driver to judge. Small, whatever the size of the state."""

    partition: int
    kind: str
    #: '' or why nothing of this range may be used
    finding: str = ""
    #: of chunks: the checksums in order
    checksums: list[int] = []
    #: of increments: the last whole transaction, where its header lies, and its mark's digest and number of keys
    last: int = -1
    header: int = -1
    digest: bytes = b""
    keys: int = 0
    entries: int = 0
    size: int = 0


class Unpacker:
    """For `mapInArrow`: columns topic, partition, offset, value in, `SCHEMA` out; pickled by reference."""

    def __init__(self, scans: Mapping[int, Scan]) -> None:
        self._scans = scans

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows, ranges = _Rows(), _Ranges(self._scans)
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "value")]
            for topic, partition, offset, value in zip(*columns, strict=True):
                ranges.of(topic, partition).feed(offset, value, rows)
                if rows.size >= _FLUSH_BYTES or len(rows.keys) >= _FLUSH_ROWS:
                    yield rows.take()
        for report in ranges.reports():
            rows.add(report.partition, REPORT, [report.kind.encode()], [_encode(report)], -1)
        if rows.keys:
            yield rows.take()


_encode = msgspec.msgpack.Encoder().encode
decode_report = msgspec.msgpack.Decoder(Report).decode


class _Rows:
    """Columns of the next batch."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.partitions: list[int] = []
        self.tables: list[str] = []
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.ranks: list[int] = []
        self.size = 0

    def add(self, partition: int, table: str, keys: list[Any], values: list[bytes | None], rank: int) -> None:
        count = len(keys)
        self.partitions += repeat(partition, count)
        self.tables += repeat(table, count)
        self.keys += map(bytes, keys)
        self.values += values
        self.ranks += repeat(rank, count)

    def add_entry(self, partition: int, raw: msgspec.Raw, rank: int) -> int:
        """:raises frame.BadFrame: the entry is none."""
        try:
            table, keys, values = _entry(raw)
        except msgspec.DecodeError as error:
            raise frame.BadFrame(f"entry: {error}") from error
        if len(keys) != len(values) or table == REPORT:
            raise frame.BadFrame(f"table {table!r}: {len(keys)} keys, {len(values)} values")
        self.add(partition, table, keys, values, rank)
        self.size += len(memoryview(raw))
        return len(keys)

    def take(self) -> pa.RecordBatch:
        batch = pa.record_batch(
            [
                pa.array(self.partitions, pa.int32()),
                pa.array(self.tables, pa.string()),
                pa.array(self.keys, pa.binary()),
                pa.array(self.values, pa.binary()),
                pa.array(self.ranks, pa.int64()),
            ],
            names=["partition", "table", "key", "value", "rank"],
        )
        self._clear()
        return batch


class _Increments:
    """A range of an increment partition: whole transactions above S become rows."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._chain = Chain(scan.topic, scan.partition)
        if scan.full:
            self._chain.last, self._chain.lineage = scan.first, scan.lineage
        elif scan.first >= 0:
            self._chain.last = scan.first
        self.report = Report(partition=scan.partition, kind="increments")

    def feed(self, offset: int, data: bytes | None, rows: _Rows) -> None:
        report = self.report
        if report.finding:
            return
        try:
            report.size += len(data or b"")
            record = records.unpack(data)
            increment = self._chain.feed(offset, record)
            if increment is not None:
                self._take(increment, rows)
        except (PartitionError, frame.BadFrame) as error:
            report.finding = str(error)

    def _take(self, increment: Increment, rows: _Rows) -> None:
        report, mark = self.report, increment.mark
        if report.last < 0 and not self._scan.full:
            report.finding = _beginning(increment)
        for part in increment.parts:
            for raw in part.entries:
                report.entries += rows.add_entry(self._scan.partition, raw, mark.n)
        report.last, report.header = mark.n, increment.offset
        report.digest, report.keys = mark.digest, mark.keys

    def done(self) -> Report:
        try:
            self._chain.finish(-1)
        except PartitionError as error:
            self.report.finding = self.report.finding or str(error)
        return self.report


def _beginning(increment: Increment) -> str:
    """Without a full all must be there from an empty state on: the genesis, or an adopt record without a base."""
    n, adopt = increment.mark.n, increment.adopt
    if adopt is not None and adopt.base is not None:
        return f"the full that adopt record {n} names cannot be used, nor a later one"
    if n > 0 and adopt is None:
        return f"no usable full, and the deltas begin with transaction {n}"
    return ""


class _Chunks:
    """A range of a full partition: the chunks of the base in order; doubles and those of others are passed over."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self.report = Report(partition=scan.partition, kind="chunks")

    def feed(self, offset: int, data: bytes | None, rows: _Rows) -> None:
        report, scan = self.report, self._scan
        if report.finding or not data:
            return
        try:
            if frame.kind_of(data) != b"C":
                return
            chunk = records.unpack(data)
            assert isinstance(chunk, Chunk)
            seen = len(report.checksums)
            if chunk.full != scan.full or chunk.i < seen:
                return
            if chunk.i != seen:
                report.finding = f"chunk {seen} of {scan.chunks} is missing"
                return
            report.entries += rows.add_entry(scan.partition, chunk.entry, scan.first)
            report.size += len(data)
            report.checksums.append(frame.body_checksum(data))
        except frame.BadFrame as error:
            report.finding = f"offset {offset}: {error}"

    def done(self) -> Report:
        return self.report


def judge_chunks(manifest: Manifest, report: Report | None) -> str:
    """Why these are not exactly the chunks that the manifest names, or ''."""
    wanted = len(manifest.checksums)
    if report is None:
        return "" if wanted == 0 else f"0 of {wanted} chunks are there"
    if report.finding:
        return report.finding
    for i, (expected, found) in enumerate(zip(manifest.checksums, report.checksums, strict=False)):
        if expected != found:
            return f"chunk {i} of {wanted} is damaged"
    return "" if len(report.checksums) == wanted else f"{len(report.checksums)} of {wanted} chunks are there"


class _Ranges:
    """The ranges that a task has seen."""

    def __init__(self, scans: Mapping[int, Scan]) -> None:
        self._scans = scans
        self._open: dict[tuple[str, int], _Increments | _Chunks] = {}

    def of(self, topic: str, partition: int) -> _Increments | _Chunks:
        found = self._open.get((topic, partition))
        if found is None:
            scan = self._scans[partition]
            found = _Increments(scan) if topic == scan.topic else _Chunks(scan)
            self._open[topic, partition] = found
        return found

    def reports(self) -> Iterator[Report]:
        return (each.done() for each in self._open.values())
