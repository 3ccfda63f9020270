"""Which state a point in time means in one partition, and which states there are (rule M1). No Spark."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from statehold.errors import DamagedIncrement, PartitionError
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore import discovery
from statehold.snapshot.restore.discovery import LocatedManifest, LocatedMark
from statehold.snapshot.spark.fold import plan as planning
from statehold.snapshot.spark.fold.plan import Plan


class Moment(NamedTuple):
    """The newest state, the one at a position of the input, or the one whose mark lies below an offset of the increment
    topic, which is what a time comes to."""

    kind: Literal["latest", "position", "increment"] = "latest"
    value: int = 0
    #: in the words of who asked
    asked: str = "latest"


LATEST = Moment()


class Kept(NamedTuple):
    """The oldest and the newest state of a partition that can be brought back."""

    oldest: LocatedMark
    newest: LocatedMark


class OutOfReach(PartitionError):
    """The moment lies before what is kept; the text says which positions are there."""


def plan(reader: Reader, place: Place, moment: Moment, damaged: Collection[int] = ()) -> Plan:
    """The state at the moment, rounded down to a mark with a delta.

    :raises OutOfReach: it is older than what is kept. :raises PartitionError: there is no state at all.
    """
    try:
        newest = planning.make(reader, place, damaged=damaged)
        if moment.kind == "latest":
            return newest
        there = kept(reader, place, newest)
        goal = _goal(reader, place, moment, newest)
    except (frame.BadFrame, OutOfRange) as error:
        raise DamagedIncrement(
            f"cannot be read, or was truncated meanwhile: {error}",
            topic=place.names.changelog,
            partition=place.partition,
        ) from error
    if goal is None or there is None or goal.mark.n < there.oldest.mark.n:
        raise OutOfReach(_told(reader, place, there), topic=place.input, partition=place.partition)
    if goal.mark.n == newest.goal.mark.n:
        return newest
    return planning.make(reader, place, damaged=damaged, before=goal.offset + 1)


def kept(reader: Reader, place: Place, newest: Plan) -> Kept | None:
    """What the fulls and deltas of the current lineage lead to; None where nothing does."""
    first = discovery.oldest_mark(reader, place, lambda mark: mark.n >= newest.last.adopted)
    if first is not None and first.mark.delta and _from_nothing(first):
        return Kept(first, newest.goal)
    states = [state for full in newest.fulls if (state := _state_of(reader, place, full)) is not None]
    return Kept(min(states, key=lambda each: each.mark.n), newest.goal) if states else None


def time_of(reader: Reader, place: Place, located: LocatedMark) -> int:
    """When Kafka took a mark in (LogAppendTime), in milliseconds since 1970."""
    for batch in reader.read(place.names.changelog, place.partition, located.offset, located.offset + 1):
        for message in batch:
            return message.timestamp()[1]
    raise OutOfRange(located.offset)


def told_time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _goal(reader: Reader, place: Place, moment: Moment, newest: Plan) -> LocatedMark | None:
    """The newest mark with a delta that is not after the moment, of the current lineage."""
    adopted, value, topic = newest.last.adopted, moment.value, place.input

    def inside(mark: CommitRecord) -> bool:
        return mark.n < adopted or mark.positions[topic] <= value  # positions may have gone back at an adoption

    end = discovery.end_of(reader, place, inside) if moment.kind == "position" else value
    return discovery.newest_mark(reader, place, lambda mark: mark.delta and mark.n >= adopted, end)


def _from_nothing(first: LocatedMark) -> bool:
    """Whether this mark's state is whole without a full: a genesis, or an adoption of an empty state."""
    mark = first.mark
    if mark.n == 0:
        return True
    return mark.n == mark.adopted and mark.keys == 0


def _state_of(reader: Reader, place: Place, full: LocatedManifest) -> LocatedMark | None:
    """The first mark with a delta to which a full leads."""
    manifest = full.manifest
    start = discovery.end_of(reader, place, lambda mark: mark.n < manifest.through)
    return discovery.oldest_mark(reader, place, lambda mark: mark.delta and mark.n >= manifest.through, start)


def _told(reader: Reader, place: Place, there: Kept | None) -> str:
    if there is None:
        return "nothing is kept that leads to a state: no usable full, and the deltas do not begin at the beginning"
    (_, oldest), (_, newest) = there
    begin, end = time_of(reader, place, there.oldest), time_of(reader, place, there.newest)
    return (
        f"no state that old is kept. There are positions {oldest.positions[place.input]} to "
        f"{newest.positions[place.input]} (transactions {oldest.n} to {newest.n}, "
        f"{told_time(begin)} to {told_time(end)})"
    )
