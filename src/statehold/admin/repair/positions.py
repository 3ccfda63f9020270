"""Repairs that keep the state and change the next offset: `accept-gap` and `adopt-offsets`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from statehold.admin.repair.repair import RepairedState
from statehold.admin.state.position_args import InputPartition
from statehold.admin.state.stopped_service import LastState, StoppedService, inputs_at
from statehold.errors import NoCommitRecord, ToolRefused
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.state import digest
from statehold.worker.recovery.checks import contradicting

#: An offset, or the current beginning or end of the input.
Target = int | Literal["beginning", "end"]


class AcceptGap:
    """Continues after a gap in the input, with the state as it is, if the next records were deleted or replaced."""

    name = "repair accept-gap"

    def __init__(self, targets: Mapping[InputPartition, Target] | Target | None = None) -> None:
        """`targets`: where to continue, for all partitions that have a gap, or by (input and) partition."""
        self._targets = targets

    def examine(self, stopped: StoppedService, place: Place) -> RepairedState:
        commit_record = required_commit_record(stopped, place)
        inputs = place.names.inputs
        gaps = [gap for topic in inputs if (gap := _gap(stopped, place, commit_record, topic)) is not None]
        targets = {gap.topic: self._target(place, gap, alone=len(gaps) == 1) for gap in gaps}
        self._require_use(place, targets)
        if gaps:
            found = _whole(stopped, as_marked(place, commit_record), gaps[0])
        else:
            found = stopped.find(as_marked(place, commit_record))
        several = len(inputs) > 1
        return RepairedState(
            old=found.commit_record,
            like=found.commit_record,
            state=found.state,
            inputs=inputs_at(commit_record, place.names) | targets,
            finding="; ".join(f"{gap.topic}: {gap.finding}" if several else gap.finding for gap in gaps),
            consequence="; ".join(gap.consequence(targets[gap.topic]) for gap in gaps),
        )

    def nothing(self) -> str:
        return "no partition has a gap: the next record of each exists or is not written yet"

    def _require_use(self, place: Place, targets: Mapping[str, int]) -> None:
        """:raises ToolRefused: --to names an input or a partition that has no gap."""
        chosen = self._targets if isinstance(self._targets, Mapping) else {}
        without = [topic for topic in place.names.inputs if topic not in targets and (topic, place.partition) in chosen]
        if without or (not targets and place.partition in chosen):
            where = f"{(without or [place.input])[0]}[{place.partition}]"
            raise ToolRefused(f"{where}: there is no gap, so --to does not apply. Nothing was changed")

    def _target(self, place: Place, gap: Gap, *, alone: bool) -> int:
        """:raises ToolRefused: a target is needed but not chosen, or it is not in the topic."""
        where, low, end = f"{gap.topic}[{place.partition}]", gap.low, gap.end
        chosen, by_topic = self._targets, (gap.topic, place.partition)
        option = f"{gap.topic}:{place.partition}=OFFSET" if place.names.others else f"{place.partition}=OFFSET"
        if isinstance(chosen, Mapping):
            alone = alone or by_topic in chosen
            chosen = chosen.get(by_topic, chosen.get(place.partition))
        if chosen is None and gap.must_choose:
            raise ToolRefused(
                f"{where}: {gap.finding}. The topic begins at {low} and ends at {end}. Nothing was changed. Next: add "
                f"--to beginning, --to end, or --to {option}"
            )
        target = {"beginning": low, "end": end, None: low}.get(chosen, chosen)  # type: ignore[arg-type]
        assert isinstance(target, int)
        if isinstance(chosen, int) and not alone:
            raise ToolRefused(
                f"{where}: {gap.finding}, and another input has a gap, too, so an offset does not say where to "
                f"continue. Nothing was changed. Next: use --to beginning, --to end, or --to {option}"
            )
        if not low <= target <= end:
            raise ToolRefused(f"{where} holds offsets {low} to {end}, not {target}. Nothing was changed")
        return target


class Gap(NamedTuple):
    """A gap in one input of a partition; the partition has its offsets from `low` to `end`."""

    topic: str
    position: int
    low: int
    end: int
    finding: str
    #: it was deleted and created again
    replaced: bool

    @property
    def must_choose(self) -> bool:
        """The operator has to say where to continue."""
        return self.replaced or self.position > self.end

    def consequence(self, target: int) -> str:
        """Say what happens to the records between."""
        if self.replaced:
            return "the new topic's records are processed from there"
        skipped = target - self.position
        return f"{skipped} offsets are skipped" if skipped > 0 else "no offset is skipped"


class AdoptOffsets:
    """Resolves a difference between the group's offset and the last commit record: the operator chooses one."""

    name = "repair adopt-offsets"

    def __init__(self, source: Literal["commit-record", "group"]) -> None:
        self._source = source

    def examine(self, stopped: StoppedService, place: Place) -> RepairedState:
        found = stopped.find(place)
        last, inputs = found.commit_record, inputs_at(found.commit_record, place.names)
        plain = RepairedState(old=last, like=last, state=found.state, inputs=inputs)
        committed = {topic: stopped.admin.committed(topic, place.partition) for topic in inputs}
        differing = contradicting(last, committed)
        if not differing:
            return plain
        finding = "; ".join(
            f"{f'{topic}: ' if place.names.others else ''}the group's offset is {at}, the last commit record has "
            f"{inputs[topic]}"
            for topic, at in differing.items()
        )
        if self._source == "commit-record":
            consequence = "the group's offset is set to the commit record's"
            return msgspec.structs.replace(plain, finding=finding, consequence=consequence)
        consequence = "; ".join(_adopted(stopped, place, topic, inputs[topic], at) for topic, at in differing.items())
        return msgspec.structs.replace(plain, inputs=inputs | differing, finding=finding, consequence=consequence)

    def nothing(self) -> str:
        return "group offsets and commit records agree in every partition"


def _adopted(stopped: StoppedService, place: Place, topic: str, position: int, committed: int) -> str:
    """Describe the effect of the group's offset. :raises ToolRefused: the input does not hold that offset."""
    low, end = stopped.bounds(topic, place.partition)
    if not low <= committed <= end:
        raise ToolRefused(
            f"{topic}[{place.partition}]@{committed}: continue at the group's offset: the partition holds offsets "
            f"{low} to {end}. Nothing was changed"
        )
    which = f"{topic}: " if place.names.others else ""
    if committed > position:
        return f"{which}{committed - position} offsets are skipped"
    return f"{which}{position - committed} offsets are processed again: their outputs are duplicated"


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
    inputs = place.names.inputs
    known = {
        topic: commit_record.topic_ids.get(topic, now) for topic, now in place.topic_ids.items() if topic in inputs
    }
    return msgspec.structs.replace(place, topic_ids=place.topic_ids | known)


def _gap(stopped: StoppedService, place: Place, commit_record: CommitRecord, topic: str) -> Gap | None:
    """Return the gap of one input; None if its next record exists or is not written yet."""
    position = commit_record.positions[topic]
    replaced = commit_record.topic_ids.get(topic, "") not in ("", place.topic_ids[topic])
    low, end = stopped.bounds(topic, place.partition)
    if replaced:
        finding = (
            f"the input was deleted and created again; the last commit record is at {position} of the old one, and no "
            f"record of the new one was processed"
        )
    elif position < low:
        finding = f"offsets {position} to {low} are deleted: the input begins at {low}"
    elif position > end:
        finding = f"the input ends at {end}, but the next offset is {position}: processed records are deleted"
    else:
        return None
    return Gap(topic, position, low, end, finding, replaced)


def _whole(stopped: StoppedService, place: Place, gap: Gap) -> LastState:
    """Return the state at the last commit record.

    :raises ToolRefused: restoring it needs deleted records.
    """
    found, newest = stopped.newest(place)
    position = found.commit_record.position(place.input)
    if newest != position or digest.to_bytes(found.state.digest) != found.commit_record.digest:
        raise ToolRefused(
            f"{place.input}[{place.partition}]@{position}: restore the state: it needs the records from {newest}, but "
            f"{gap.topic} begins at {gap.low}. Nothing was changed. Next: run `statehold repair rebase`, which "
            f"continues from an older state"
        )
    return found
