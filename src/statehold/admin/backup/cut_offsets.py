"""Chooses the state of a backup to restore: the newest one, or the newest one up to a position or a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from statehold.admin.state.position_args import shown
from statehold.common.names import Names
from statehold.errors import UsageError
from statehold.snapshot.backup.archive import BackupManifest
from statehold.snapshot.backup.reading import ArchiveReader, place_of
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.past import LATEST, PastState, Point


class CutOffPositions:
    """The cut-off position of each partition of a backup. Call `find` or `find_time` first. Reads files only."""

    def __init__(self, names: Names, source: Path, manifest: BackupManifest) -> None:
        self.names, self.source, self.manifest = names, source, manifest
        self.count = len(manifest.partitions)
        self.reader = ArchiveReader(source, manifest)
        self._points: list[Point] = []
        #: partition -> next offset of its state in each old input.
        self.positions: dict[int, dict[str, int]] = {}
        #: partition -> the transaction of its state
        self.numbers: dict[int, int] = {}

    def find(self, cut: Mapping[int, int] | int | None) -> None:
        """Find the state of each partition at `cut`, and check it before the restore writes anything."""
        self._require_same()
        for partition in range(self.count):
            at = cut if isinstance(cut, int) else (cut or {}).get(partition)
            self._cut(LATEST if at is None else Point("position", at))

    def find_time(self, moment: int) -> None:
        """Find the states by the LogAppendTime of their commit records, in milliseconds since 1970.

        :raises UsageError: the backup has no commit record of that age.
        """
        self._require_same()
        for partition in range(self.count):
            self._cut(Point("n", self._newest_by(partition, moment)))

    def _newest_by(self, partition: int, moment: int) -> int:
        found, first, topic = -1, -1, place_of(self.source, self.manifest, partition).names.changelog
        low, end = self.reader.bounds(topic, partition)
        for batch in self.reader.read(topic, partition, low, end):
            for message in batch:
                data = message.value()
                if frame.kind_of(data) == b"M":
                    taken = message.timestamp()[1]
                    first = taken if first < 0 else first
                    record = records.unpack(data) if taken <= moment else None
                    found = record.n if isinstance(record, CommitRecord) else found
        if found < 0:
            raise UsageError(
                f"{self.source}: partition {partition}: find the state at {shown(moment)}: the first commit record is "
                f"of {shown(first)}. Nothing was written"
            )
        return found

    def _require_same(self) -> None:
        if (self.names.service, self.names.inputs) != (self.manifest.service, self.manifest.inputs):
            raise UsageError(
                f"{self.source}: the backup is of service {self.manifest.service!r} with input "
                f"{_listed(self.manifest.inputs)}, not of {self.names.service!r} with {_listed(self.names.inputs)}"
            )

    def _cut(self, point: Point) -> None:
        partition = len(self._points)
        self._points.append(point)
        found = self.at(partition)
        self.positions[partition], self.numbers[partition] = found.offsets(self.names.inputs), found.n

    def at(self, partition: int) -> PastState:
        return past.at(self.reader, place_of(self.source, self.manifest, partition), self._points[partition])

    def commit_record(self, partition: int, found: PastState) -> CommitRecord:
        """Return the commit record of that state; truncation keeps it as long as its full snapshot (rule C3)."""
        for increment in past.increments(self.reader, place_of(self.source, self.manifest, partition)):
            if increment.commit_record.n == found.n and increment.commit_record.lineage == found.lineage:
                return increment.commit_record
        raise UsageError(f"{self.source}: partition {partition}: the commit record of transaction {found.n} is missing")


def _listed(topics: Sequence[str]) -> str:
    return ", ".join(map(repr, topics))
