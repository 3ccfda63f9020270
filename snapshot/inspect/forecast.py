"""Predicts the duration of a restore from the manifest, the last commit record and a sample of the changelog."""

from __future__ import annotations

import math

from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, Part
from statehold.snapshot.inspect.contents import decoded
from statehold.snapshot.inspect.survey import Survey
from statehold.snapshot.restore.estimate import Speeds, Workload

#: Number of changelog records in the sample.
_SAMPLE = 2000


def seconds(work: Workload, commit_record: CommitRecord | None) -> float:
    """Return the seconds of a restore at the default speeds (docs/how-to/state/restore.md).

    Fencing and the session timeout are not included.
    The speed of a replay is the one that the commit record's writer measured.
    """
    speeds = Speeds()
    speeds.expect(commit_record.pace if commit_record is not None else 0)
    return speeds.now.predict(work).total


def workload(reader: Reader, place: Place, seen: Survey) -> Workload:
    """Return the work of a restore. The contents of the changelog are estimated from its newest records."""
    commit_record, made = seen.commit_record, seen.choice.manifest if seen.choice else None
    if commit_record is None:
        return Workload()
    start, end = seen.increment
    start = max(start, made.increment) if made else start
    size, entries, share = _sample(reader, place, start, end)
    return Workload(
        full_keys=made.loads if made else 0,
        full_bytes=made.size if made else 0,
        transactions=commit_record.n - (made.first if made else commit_record.adopted),
        entries=math.ceil(entries * share),
        increment_bytes=math.ceil(size * share),
        keys=commit_record.keys,
        gap=_gap(place, seen, commit_record),
    )


def _gap(place: Place, seen: Survey, commit_record: CommitRecord) -> int:
    """Return the number of records to replay, assuming that they are spread evenly over the transactions."""
    made = seen.choice.manifest if seen.choice else None
    begin = sum(seen.begins.values())
    first, since = (made.first, max(0, made.position(place.input))) if made else (commit_record.adopted, begin)
    gap = commit_record.position(place.input) - since
    if seen.far or commit_record.last_delta <= first:
        return max(0, gap)
    return max(0, math.ceil(gap * (commit_record.n - commit_record.last_delta) / max(1, commit_record.n - first)))


def _sample(reader: Reader, place: Place, start: int, end: int) -> tuple[int, int, float]:
    """Return bytes and keys of the newest records between two offsets, and the factor to the whole range."""
    low = max(start, end - _SAMPLE)
    size = entries = 0
    try:
        for batch in reader.read(place.names.changelog, place.partition, low, end):
            for message in batch:
                data = message.value()
                size += len(data)
                try:
                    record = records.unpack(data)
                    if isinstance(record, Part):
                        entries += sum(len(decoded(raw).keys) for raw in record.entries)
                except frame.BadFrame:
                    continue  # `statehold snapshot verify` reports the damage
    except OutOfRange:
        return 0, 0, 1.0  # the service truncated the topic meanwhile, so little is left
    return size, entries, (end - start) / (end - low) if end > low else 1.0
