"""Plans a fold: the state, its full snapshot and the offsets to read (rules C1, S1, S6). Does not use Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from statehold.errors import DamagedIncrement, PartitionError
from statehold.ports import OutOfRange, Reader
from statehold.snapshot.format import frame, recorded_types
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import COMPACTION, CommitRecord
from statehold.snapshot.restore import discovery
from statehold.snapshot.restore.discovery import LocatedCommitRecord, LocatedManifest, last_commit_record

#: True for commit records up to the requested state; monotonic over the commit records of a partition.
Upto = Callable[[CommitRecord], bool]
#: Number of records below which another task is not worthwhile.
_SHORTEST: Final = 16


class FoldPlan(msgspec.Struct, frozen=True):
    """The inputs of a fold: at most one full snapshot (the base), and the changelog after it up to the goal."""

    place: Place
    #: The newest commit record, with or without a delta.
    last: CommitRecord
    #: Commit record of the folded state (D of rule C1), with its offset.
    goal: LocatedCommitRecord
    base: LocatedManifest | None
    #: Full snapshots that lead to the goal, newest first; those before `base` are damaged.
    full_snapshots: tuple[LocatedManifest, ...]
    #: Changelog offsets to read.
    start: int
    end: int
    #: Commit records after which the changelog is divided between tasks, and offsets that divide the base's chunks.
    cuts: tuple[LocatedCommitRecord, ...] = ()
    chunk_cuts: tuple[int, ...] = ()
    #: The new full snapshot shares the chunks of the base, so the fold leaves them out; see `sharing`.
    shares: bool = False

    @property
    def partition(self) -> int:
        return self.place.partition

    @property
    def first(self) -> int:
        """Transaction of the base (S in the rules); the fold applies deltas of later transactions."""
        return self.base.manifest.first if self.base else max(self.goal.commit_record.adopted - 1, -1)

    @property
    def up_to_date(self) -> bool:
        """True if the base is already the state at the goal, so another full snapshot is useless (rule C4)."""
        manifest = self.base.manifest if self.base else None
        return manifest is not None and manifest.first == manifest.through == self.goal.commit_record.n


def make(
    reader: Reader, place: Place, upto: Upto | None = None, damaged: Collection[int] = (), before: int | None = None
) -> FoldPlan:
    """FoldPlan the newest state, or the newest one up to `upto`, or below changelog offset `before`.

    `damaged` are offsets of manifests to skip. `reader` ends at the last stable offset, so workers may run meanwhile.

    :raises PartitionError: there is no such state; the text says which ones exist.
    """
    try:
        last = last_commit_record(reader, place.names.changelog, place.partition)
        if last is None:
            raise _lost(place, "there is no commit record")
        place.check(last)
        end = before if upto is None else discovery.end_of(reader, place, upto)
        goal = discovery.newest_commit_record(reader, place, lambda commit_record: commit_record.delta, end)
        if goal is None:
            raise _lost(place, _nothing_to_fold(reader, place, last, upto))
        recorded_types.check(goal.commit_record, place.types, place.input)
        full_snapshots = tuple(_candidates(reader, place, last, goal.commit_record, all_of_them=bool(damaged)))
    except frame.BadFrame as error:
        raise _lost(place, f"a record cannot be read: {error}") from error
    except OutOfRange as error:
        raise _lost(place, f"the service truncated its topics meanwhile: {error}; run the command again") from error
    base = next((found for found in full_snapshots if found.offset not in damaged), None)
    start = reader.bounds(place.names.changelog, place.partition)[0]
    if base is not None:
        start = max(start, base.manifest.increment)
    elif goal.commit_record.reach > goal.commit_record.adopted:
        raise _lost(
            place, f"no full snapshot is usable, and the deltas begin after transaction {goal.commit_record.reach}"
        )
    return FoldPlan(place, last, goal, base, full_snapshots, start, goal.offset + 1)


def divided(reader: Reader, plan: FoldPlan, pieces: int) -> FoldPlan:
    """Divide the plan between about `pieces` tasks, because otherwise one task reads a topic partition."""
    base = plan.base
    chunk_cuts: tuple[int, ...] = ()
    if base is not None and base.manifest.low >= 0:
        chunk_cuts = tuple(_between(base.manifest.low, base.offset, pieces))
    cuts: dict[int, LocatedCommitRecord] = {}
    try:
        for target in _between(plan.start, plan.end, pieces):
            found = discovery.oldest_commit_record(
                reader, plan.place, lambda commit_record: commit_record.n > plan.first, target
            )
            if found is not None and found.offset + 1 < plan.end:
                cuts[found.offset] = found
    except (frame.BadFrame, OutOfRange, DamagedIncrement):
        return plan  # the read reports the error
    return msgspec.structs.replace(plan, cuts=tuple(cuts.values()), chunk_cuts=chunk_cuts)


def _between(start: int, end: int, pieces: int) -> Iterator[int]:
    """Yield the boundaries of `pieces` of about the same length; fewer if they would be too short."""
    pieces = min(pieces, (end - start) // _SHORTEST)
    yield from (start + (end - start) * i // pieces for i in range(1, pieces))


def _candidates(
    reader: Reader, place: Place, last: CommitRecord, goal: CommitRecord, *, all_of_them: bool
) -> Iterator[LocatedManifest]:
    """Yield the full snapshots that lead to the goal, the newest first (rule S6), of any maker.

    Those of compactions are found by the chunks of the newest usable one. `all_of_them` also reads the whole topic for
    those to which no chunk leads.
    """
    low = reader.bounds(place.names.snapshot, place.partition)[0]
    known = {ref.offset for commit_record in (last, goal) for ref in commit_record.full_snapshots}
    found = {each.offset: each for offset in known if (each := discovery.manifest_at(reader, place, offset))}

    def usable(each: LocatedManifest) -> bool:
        return not place.refuses(each.manifest, goal) and each.ref.low >= low

    newest = max(found, default=-1)
    for each in list(found.values()):
        _follow(reader, place, each, found)
    for each in discovery.compactions(reader, place, newest):
        leads_back = _follow(reader, place, each, found)
        found[each.offset] = each
        if leads_back and usable(each) and not all_of_them:
            break
    yield from sorted(filter(usable, found.values()), key=lambda each: (-each.manifest.first, -each.manifest.time))


def _follow(reader: Reader, place: Place, start: LocatedManifest, found: dict[int, LocatedManifest]) -> bool:
    """Add the compactions before this full snapshot. Return whether its chunks lead to the oldest one."""
    each = start
    while (offset := discovery.offset_before(reader, place, each)) is not None and offset >= 0:
        before = discovery.manifest_at(reader, place, offset) if offset < each.offset else None
        if before is None:
            return offset < reader.bounds(place.names.snapshot, place.partition)[0]
        # A worker's full snapshot counts only if a commit record refers to it.
        if before.offset not in found and before.manifest.maker == COMPACTION:
            found[before.offset] = before
        each = before
    return offset is not None


def _nothing_to_fold(reader: Reader, place: Place, last: CommitRecord, upto: Upto | None) -> str:
    oldest = discovery.newest_commit_record(reader, place, lambda commit_record: commit_record.delta) if upto else None
    if oldest is None:
        return (
            f"no commit record up to transaction {last.n} has a delta (snapshot.delta_interval is off), so there is no "
            f"state to fold"
        )
    start = reader.bounds(place.names.changelog, place.partition)[0]
    first = discovery.end_of(reader, place, lambda _: False)
    return f"no state of that age is stored: the changelog begins at offset {max(start, first)}"


def _lost(place: Place, finding: str) -> PartitionError:
    return DamagedIncrement(f"{finding}. Nothing was changed", topic=place.names.changelog, partition=place.partition)
