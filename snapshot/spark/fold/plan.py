"""What Spark is to read for one partition: which state, from which base, which offsets (rules C1, S1, S6). No Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from statehold.errors import DamagedIncrement, PartitionError
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import COMPACTION, CommitRecord
from statehold.snapshot.restore import discovery
from statehold.snapshot.restore.discovery import LocatedManifest, LocatedMark, last_mark

#: holds for a mark that is not after the state that is asked for; monotonic over the marks of a partition
Upto = Callable[[CommitRecord], bool]
#: records that are not worth another task
_SHORTEST: Final = 16


class Plan(msgspec.Struct, frozen=True):
    """How the state at `goal` is folded: one base at most, and the increments after it up to the goal."""

    place: Place
    #: the newest mark of all, whether or not it carries a delta
    last: CommitRecord
    #: the delta whose state is folded (D of rule C1), and where its mark lies
    goal: LocatedMark
    base: LocatedManifest | None
    #: every full that may be a base for the goal, newest first; those before `base` were found damaged
    fulls: tuple[LocatedManifest, ...]
    #: offsets of the increment topic to read
    start: int
    end: int
    #: marks behind which what is read is cut, so that several tasks share it, and offsets that cut the base's chunks
    cuts: tuple[LocatedMark, ...] = ()
    chunk_cuts: tuple[int, ...] = ()

    @property
    def partition(self) -> int:
        return self.place.partition

    @property
    def first(self) -> int:
        """S: the transaction that the base stands for; the fold takes increments above it."""
        return self.base.manifest.first if self.base else max(self.goal.mark.adopted - 1, -1)

    @property
    def up_to_date(self) -> bool:
        """The base is the state at the goal already, so another full would not count (rule C4)."""
        manifest = self.base.manifest if self.base else None
        return manifest is not None and manifest.first == manifest.through == self.goal.mark.n


def make(
    reader: Reader, place: Place, upto: Upto | None = None, damaged: Collection[int] = (), before: int | None = None
) -> Plan:
    """Plan the newest state, or the newest one that is not after `upto`, or whose mark lies below offset `before` of
    the increment topic. `damaged` names manifests not to use.

    `reader` ends at the last stable offset, so a worker may go on meanwhile.

    :raises PartitionError: there is no such state; the message says which there are.
    """
    try:
        last = last_mark(reader, place.names.changelog, place.partition)
        if last is None:
            raise _lost(place, "holds no mark")
        place.check(last)
        end = before if upto is None else discovery.end_of(reader, place, upto)
        goal = discovery.newest_mark(reader, place, lambda mark: mark.delta, end)
        if goal is None:
            raise _lost(place, _nothing_to_fold(reader, place, last, upto))
        fulls = tuple(_candidates(reader, place, last, goal.mark))
    except frame.BadFrame as error:
        raise _lost(place, f"a record cannot be read: {error}") from error
    except OutOfRange as error:
        raise _lost(place, f"truncated while it was planned: {error}; try again") from error
    base = next((found for found in fulls if found.offset not in damaged), None)
    start = reader.bounds(place.names.changelog, place.partition)[0]
    if base is not None:
        start = max(start, base.manifest.increment)
    elif goal.mark.reach > goal.mark.adopted:
        raise _lost(place, f"no usable full, and deltas lead on only from transaction {goal.mark.reach}")
    return Plan(place, last, goal, base, fulls, start, goal.offset + 1)


def divided(reader: Reader, plan: Plan, pieces: int) -> Plan:
    """The same plan for about `pieces` tasks: one topic partition is otherwise read by one."""
    base = plan.base
    chunk_cuts: tuple[int, ...] = ()
    if base is not None and base.manifest.low >= 0:
        chunk_cuts = tuple(_between(base.manifest.low, base.offset, pieces))
    cuts: dict[int, LocatedMark] = {}
    try:
        for target in _between(plan.start, plan.end, pieces):
            found = discovery.oldest_mark(reader, plan.place, lambda mark: mark.n > plan.first, target)
            if found is not None and found.offset + 1 < plan.end:
                cuts[found.offset] = found
    except (frame.BadFrame, OutOfRange):
        return plan  # whoever reads it says what is wrong
    return msgspec.structs.replace(plan, cuts=tuple(cuts.values()), chunk_cuts=chunk_cuts)


def _between(start: int, end: int, pieces: int) -> Iterator[int]:
    """Where `pieces` of about the same length meet; fewer where they would be short."""
    pieces = min(pieces, (end - start) // _SHORTEST)
    yield from (start + (end - start) * i // pieces for i in range(1, pieces))


def _candidates(reader: Reader, place: Place, last: CommitRecord, goal: CommitRecord) -> Iterator[LocatedManifest]:
    """Fulls that may be the base for the goal, the greatest S first (rule S6), whoever made them."""
    low = reader.bounds(place.names.snapshot, place.partition)[0]
    known = {ref.offset for mark in (last, goal) for ref in mark.fulls}
    found = {each.offset: each for offset in known if (each := discovery.manifest_at(reader, place, offset))}
    newest = max(found, default=-1)
    found |= {each.offset: each for each in discovery.compactions(reader, place, newest)}
    for each in list(found.values()):
        before = discovery.predecessor(reader, place, each)
        while before is not None and before.offset not in found:
            # a worker's own full counts only where a mark refers to it
            if before.manifest.maker == COMPACTION:
                found[before.offset] = before
            before = discovery.predecessor(reader, place, before)
    usable = [each for each in found.values() if not place.refuses(each.manifest, goal) and each.ref.low >= low]
    yield from sorted(usable, key=lambda each: (-each.manifest.first, -each.manifest.time))


def _nothing_to_fold(reader: Reader, place: Place, last: CommitRecord, upto: Upto | None) -> str:
    oldest = discovery.newest_mark(reader, place, lambda mark: mark.delta) if upto else None
    if oldest is None:
        return (
            f"no mark up to transaction {last.n} carries a delta (snapshot.delta_interval is off): there is nothing "
            f"to fold"
        )
    start = reader.bounds(place.names.changelog, place.partition)[0]
    first = discovery.end_of(reader, place, lambda _: False)
    return f"no kept state is that old: the increments begin at offset {max(start, first)}"


def _lost(place: Place, finding: str) -> PartitionError:
    return DamagedIncrement(f"{finding}. Nothing was changed", topic=place.names.changelog, partition=place.partition)
