"""Takes in the records of one stretch on an executor: chunks of a full snapshot, or deltas.

A stretch is read in order. It checks its chain (`Chain`) and adds a report. Incomplete transactions give no keys. Of a
key only the newest value that the task has read leaves it (`Newest`).
"""

from __future__ import annotations

from statehold.errors import PartitionError
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.chain_check import Chain, Increment
from statehold.snapshot.format.records import Chunk
from statehold.snapshot.spark.fold.newest import Newest
from statehold.snapshot.spark.fold.report import Scan, TaskReport


class Increments:
    """A stretch of a changelog partition: complete transactions after the full snapshot."""

    def __init__(self, scan: Scan, stretch: int, newest: Newest) -> None:
        self._scan, self._stretch = scan, stretch
        self._chain = Chain(scan.topic, scan.partition)
        after = scan.after(stretch)
        if scan.full or stretch:
            self._chain.last, self._chain.lineage = after, scan.lineage
        elif after >= 0:
            self._chain.last = after
        self.newest = newest
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
                report.entries += self.newest.add(raw)
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
    n, replacement = increment.commit_record.n, increment.replacement
    if replacement is not None and replacement.base is not None:
        return f"the full snapshot of state-replacement record {n} is unusable, and so is every later one"
    if n > 0 and replacement is None:
        return f"no full snapshot is usable, and the deltas begin with transaction {n}"
    return ""


class Chunks:
    """A stretch of a snapshot partition: the base's chunks in order, without duplicates and other chunks."""

    def __init__(self, scan: Scan, stretch: int, newest: Newest) -> None:
        self._scan, self.newest = scan, newest
        self.report = TaskReport(
            partition=scan.partition, kind="chunks", stretch=stretch, of=scan.chunk_stretches, begin=0
        )

    @property
    def rank(self) -> int:
        """Below all deltas, and growing, because a later chunk may replace or delete rows of an earlier one."""
        return self._scan.first - self._scan.chunks + self.report.begin + len(self.report.checksums)

    def feed(self, offset: int, data: bytes | None) -> None:
        report, scan = self.report, self._scan
        if report.finding or not data:
            return
        try:
            if frame.kind_of(data) != b"C":
                return
            chunk = records.unpack(data)
            assert isinstance(chunk, Chunk)
            if chunk.full != scan.full or chunk.i >= scan.chunks:
                return
            if report.stretch and not report.checksums:
                report.begin = chunk.i  # `gathered` checks the connection to the previous stretch
            seen = report.begin + len(report.checksums)
            if chunk.i < seen:
                return
            if chunk.i != seen:
                report.finding = f"chunk {seen} of {scan.chunks} is missing"
                return
            report.entries += self.newest.add(chunk.entry)
            report.size += len(data)
            report.checksums.append(frame.body_checksum(data))
        except frame.BadFrame as error:
            report.finding = f"offset {offset}: {error}"

    def done(self) -> TaskReport:
        return self.report
