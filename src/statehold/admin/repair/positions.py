"""Repairs that keep the state and change the next offset: `accept-gap` and `adopt-offsets`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from statehold.admin.repair.repair import RepairedState
from statehold.admin.state.stopped_service import LastState, StoppedService
from statehold.errors import NoCommitRecord, ToolRefused
from statehold.snapshot.format import digest
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord

#: An offset, or the current beginning or end of the input.
Target = int | Literal["beginning", "end"]


class AcceptGap:
    """Continues after a gap in the input, with the state as it is, if the next records were deleted or replaced."""

    name = "repair accept-gap"

    def __init__(self, targets: Mapping[int, Target] | Target | None = None) -> None:
        """`targets`: where to continue, for all partitions that have a gap, or by partition."""
        self._targets = targets

    def examine(self, stopped: StoppedService, place: Place) -> RepairedState:
        commit_record = required_commit_record(stopped, place)
        position = commit_record.positions[place.input]
        replaced = commit_record.topic_ids.get(place.input, "") not in ("", place.topic_ids[place.input])
        low, end = stopped.bounds(place.input, place.partition)
        finding = _gap(position, low, end, replaced=replaced)
        target = self._target(place, low, end, finding, must_choose=replaced or position > end)
        found = (
            stopped.find(as_marked(place, commit_record))
            if not finding
            else _whole(stopped, as_marked(place, commit_record), low)
        )
        if not finding:
            return RepairedState(
                old=found.commit_record, like=found.commit_record, state=found.state, position=position
            )
        lost = f"{target - position} offsets are skipped" if target > position else "no offset is skipped"
        return RepairedState(
            old=found.commit_record,
            like=found.commit_record,
            state=found.state,
            position=target,
            finding=finding,
            consequence="the new topic's records are processed from there" if replaced else lost,
        )

    def nothing(self) -> str:
        return "no partition has a gap: the next record of each exists or is not written yet"

    def _target(self, place: Place, low: int, end: int, finding: str, *, must_choose: bool) -> int:
        """:raises ToolRefused: a target is needed but not chosen, or it is not in the topic."""
        where = f"{place.input}[{place.partition}]"
        chosen = self._targets
        if isinstance(chosen, Mapping):
            chosen = chosen.get(place.partition)
            if chosen is not None and not finding:
                raise ToolRefused(f"{where}: there is no gap, so --to does not apply. Nothing was changed")
        if not finding:
            return -1
        if chosen is None and must_choose:
            raise ToolRefused(
                f"{where}: {finding}. The topic begins at {low} and ends at {end}. Nothing was changed. Next: add --to "
                f"beginning, --to end, or --to {place.partition}=OFFSET"
            )
        target = {"beginning": low, "end": end, None: low}.get(chosen, chosen)  # type: ignore[arg-type]
        assert isinstance(target, int)
        if not low <= target <= end:
            raise ToolRefused(f"{where} holds offsets {low} to {end}, not {target}. Nothing was changed")
        return target


class AdoptOffsets:
    """Resolves a difference between the group's offset and the last commit record: the operator chooses one."""

    name = "repair adopt-offsets"

    def __init__(self, source: Literal["commit-record", "group"]) -> None:
        self._source = source

    def examine(self, stopped: StoppedService, place: Place) -> RepairedState:
        found = stopped.find(place)
        position = found.commit_record.positions[place.input]
        committed = stopped.admin.committed(place.input, place.partition)
        plain = RepairedState(old=found.commit_record, like=found.commit_record, state=found.state, position=position)
        if committed is None or committed in (position, found.commit_record.start):
            return plain
        finding = f"the group's offset is {committed}, the last commit record has {position}"
        if self._source == "commit-record":
            consequence = "the group's offset is set to the commit record's"
            return msgspec.structs.replace(plain, finding=finding, consequence=consequence)
        low, end = stopped.bounds(place.input, place.partition)
        if not low <= committed <= end:
            raise ToolRefused(
                f"{place.input}[{place.partition}]@{committed}: continue at the group's offset: the partition holds "
                f"offsets {low} to {end}. Nothing was changed"
            )
        consequence = (
            f"{committed - position} offsets are skipped"
            if committed > position
            else f"{position - committed} offsets are processed again: their outputs are duplicated"
        )
        return msgspec.structs.replace(plain, position=committed, finding=finding, consequence=consequence)

    def nothing(self) -> str:
        return "group offsets and commit records agree in every partition"


def required_commit_record(stopped: StoppedService, place: Place) -> CommitRecord:
    """Return the last commit record. :raises NoCommitRecord: there is no commit record."""
    commit_record = stopped.commit_record(place.partition)
    if commit_record is None:
        raise NoCommitRecord(
            f"{place.names.changelog} holds no commit record. Nothing was changed. Next: run `statehold repair "
            f"rebase`, which searches for a full snapshot; or `statehold topics create`, if the state may be lost",
            topic=place.input,
            partition=place.partition,
        )
    return commit_record


def as_marked(place: Place, commit_record: CommitRecord) -> Place:
    """Return the place with the input's topic id at that commit record, because the state depends on no later input."""
    known = {
        topic: commit_record.topic_ids.get(topic, now) for topic, now in place.topic_ids.items() if topic == place.input
    }
    return msgspec.structs.replace(place, topic_ids=place.topic_ids | known)


def _gap(position: int, low: int, end: int, *, replaced: bool) -> str:
    if replaced:
        return (
            f"the input was deleted and created again; the last commit record is at {position} of the old one, and no "
            f"record of the new one was processed"
        )
    if position < low:
        return f"offsets {position} to {low} are deleted: the input begins at {low}"
    if position > end:
        return f"the input ends at {end}, but the next offset is {position}: processed records are deleted"
    return ""


def _whole(stopped: StoppedService, place: Place, low: int) -> LastState:
    """Return the state at the last commit record.

    :raises ToolRefused: restoring it needs deleted records.
    """
    found, newest = stopped.newest(place)
    position = found.commit_record.positions[place.input]
    if newest != position or digest.to_bytes(found.state.digest) != found.commit_record.digest:
        raise ToolRefused(
            f"{place.input}[{place.partition}]@{position}: restore the state: it needs the records from {newest}, but "
            f"the input begins at {low}. Nothing was changed. Next: run `statehold repair rebase`, which continues "
            f"from an older state"
        )
    return found
