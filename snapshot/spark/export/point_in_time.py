"""Finds the state of a partition at a point in time, and the range of stored states (rule M1). Does not use Spark."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple, Protocol

from statehold.errors import DamagedIncrement, PartitionError, UsageError
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore import discovery
from statehold.snapshot.restore.discovery import LocatedCommitRecord, LocatedManifest
from statehold.snapshot.spark.fold import plan as planning
from statehold.snapshot.spark.fold.plan import FoldPlan


class PointInTime(NamedTuple):
    """A point in time: the newest state, an input position, or a changelog offset below which the commit record is.

    A time is converted to a changelog offset.
    """

    kind: Literal["latest", "position", "increment"] = "latest"
    value: int = 0
    #: The user's text.
    asked: str = "latest"


LATEST = PointInTime()


class TimedReader(Reader, Protocol):
    """A reader that finds offsets by time."""

    def offset_at(self, topic: str, partition: int, moment: int) -> int:
        """Return the first offset at that time (milliseconds since 1970) or later, else the end."""
        ...


def at_time(
    reader: TimedReader, changelog: str, partitions: Collection[int], moment: int, asked: str
) -> dict[int, PointInTime]:
    """Return the last point of each partition that Kafka had stored by `moment`, in milliseconds since 1970."""
    ends = {partition: reader.offset_at(changelog, partition, moment + 1) for partition in partitions}
    return {partition: PointInTime("increment", end, asked) for partition, end in ends.items()}


def at_position(partitions: Collection[int], given: Mapping[int, int] | int, asked: str) -> dict[int, PointInTime]:
    """Return each partition's point at an input position. :raises UsageError: `given` names none for a partition."""
    if isinstance(given, int):
        given = dict.fromkeys(partitions, given)
    missing = [str(partition) for partition in partitions if partition not in given]
    if missing:
        raise UsageError(f"{asked}: names no offset of partition {', '.join(missing)}: add it, or choose partitions")
    return {partition: PointInTime("position", given[partition], str(given[partition])) for partition in partitions}


class Kept(NamedTuple):
    """The oldest and the newest stored state of a partition."""

    oldest: LocatedCommitRecord
    newest: LocatedCommitRecord


class OutOfReach(PartitionError):
    """The point in time is older than the stored states; the text names the stored positions."""


def plan(reader: Reader, place: Place, point: PointInTime, damaged: Collection[int] = ()) -> FoldPlan:
    """FoldPlan the state at the point in time, rounded down to a commit record with a delta.

    :raises OutOfReach: it is older than the stored states. :raises PartitionError: there is no state.
    """
    try:
        newest = planning.make(reader, place, damaged=damaged)
        if point.kind == "latest":
            return newest
        end = newest.last.position(place.input)
        if point.kind == "position" and point.value > end:
            beyond = f"{point.asked} is beyond the end: the last commit record has position {end}. Next: use latest"
            raise OutOfReach(beyond, topic=place.input, partition=place.partition)
        there = kept(reader, place, newest)
        goal = _goal(reader, place, point, newest)
    except (frame.BadFrame, OutOfRange) as error:
        raise DamagedIncrement(
            f"plan the state: a record is unreadable, or was truncated meanwhile: {error}",
            topic=place.names.changelog,
            partition=place.partition,
        ) from error
    if goal is None or there is None or goal.commit_record.n < there.oldest.commit_record.n:
        raise OutOfReach(_out_of_reach(reader, place, there), topic=place.input, partition=place.partition)
    if goal.commit_record.n == newest.goal.commit_record.n:
        return newest
    return planning.make(reader, place, damaged=damaged, before=goal.offset + 1)


def kept(reader: Reader, place: Place, newest: FoldPlan) -> Kept | None:
    """Return the stored states of the current state generation; None without any."""
    first = discovery.oldest_commit_record(reader, place, lambda commit_record: commit_record.n >= newest.last.adopted)
    if first is not None and first.commit_record.delta and _from_nothing(first):
        return Kept(first, newest.goal)
    states = [state for full in newest.full_snapshots if (state := _state_of(reader, place, full)) is not None]
    return Kept(min(states, key=lambda each: each.commit_record.n), newest.goal) if states else None


def time_of(reader: Reader, place: Place, located: LocatedCommitRecord) -> int:
    """Return the LogAppendTime of a commit record in milliseconds since 1970."""
    for batch in reader.read(place.names.changelog, place.partition, located.offset, located.offset + 1):
        for message in batch:
            return message.timestamp()[1]
    raise OutOfRange(located.offset)


def reported_time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _goal(reader: Reader, place: Place, point: PointInTime, newest: FoldPlan) -> LocatedCommitRecord | None:
    """Return the newest commit record with a delta up to the moment, of the current state generation."""
    adopted, value, topic = newest.last.adopted, point.value, place.input

    def inside(commit_record: CommitRecord) -> bool:
        return (
            commit_record.n < adopted or commit_record.position(topic) <= value
        )  # positions may have gone back at an adoption

    end = discovery.end_of(reader, place, inside) if point.kind == "position" else value
    return discovery.newest_commit_record(
        reader, place, lambda commit_record: commit_record.delta and commit_record.n >= adopted, end
    )


def _from_nothing(first: LocatedCommitRecord) -> bool:
    """Return True if the state needs no full snapshot: after an initial commit or a replacement by an empty state."""
    commit_record = first.commit_record
    if commit_record.n == 0:
        return True
    return commit_record.n == commit_record.adopted and commit_record.keys == 0


def _state_of(reader: Reader, place: Place, full: LocatedManifest) -> LocatedCommitRecord | None:
    """Return the first commit record with a delta that can be reached from a full snapshot."""
    manifest = full.manifest
    start = discovery.end_of(reader, place, lambda commit_record: commit_record.n < manifest.through)
    return discovery.oldest_commit_record(
        reader, place, lambda commit_record: commit_record.delta and commit_record.n >= manifest.through, start
    )


def _out_of_reach(reader: Reader, place: Place, there: Kept | None) -> str:
    if there is None:
        return "no state is stored: no full snapshot is usable, and the deltas do not begin at 0"
    (_, oldest), (_, newest) = there
    begin, end = time_of(reader, place, there.oldest), time_of(reader, place, there.newest)
    return (
        f"the state is not stored any more. Stored are positions {oldest.position(place.input)} to "
        f"{newest.position(place.input)} (transactions {oldest.n} to {newest.n}, "
        f"{reported_time(begin)} to {reported_time(end)})"
    )
