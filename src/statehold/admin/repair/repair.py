"""`statehold repair`: repairs partitions that refuse to start; the changelog records the operator and the reason.

Every repair starts a new state generation in one transaction over all partitions, repaired or not (rule S6). Each
state-replacement record stores who repaired why, and the old and new positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Protocol

import msgspec

from statehold.admin.state.stopped_service import StoppedService
from statehold.api.handler import HandlerFactory
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import ToolRefused
from statehold.kafka.admin.admin import TopicFacts
from statehold.kafka.tools.group_lock import GroupLock
from statehold.snapshot import state_replacement
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.state_replacement import Adoption, ReplacementReason
from statehold.state import digest
from statehold.state.state import State


class RepairedState(msgspec.Struct, frozen=True, kw_only=True):
    """The state and position that one partition continues from after a repair."""

    #: Last commit record; None without one.
    old: CommitRecord | None
    #: Commit record of `state`: `old`, or one derived from a full snapshot.
    like: CommitRecord
    state: State
    #: Next offset of each input.
    inputs: Mapping[str, int]
    #: Next offset of the control topic; None: as in `old`.
    control: int | None = None
    #: ReplacementReason for the repair; '' for a partition that needs none.
    finding: str = ""
    #: Effect on the records between the old and the new position.
    consequence: str = ""


class Repair(Protocol):
    """One kind of repair; `name` is its command."""

    name: str

    def examine(self, stopped: StoppedService, place: Place) -> RepairedState:
        """Examine one partition. Changes nothing.

        :raises ToolRefused, StateRefused: this repair does not resolve the partition's error.
        """
        ...

    def nothing(self) -> str:
        """Return the text for the case that no partition needs this repair."""
        ...


class RepairStep(msgspec.Struct, kw_only=True):
    """Result for one partition; `transaction` and `full` are None if nothing was written."""

    partition: int
    #: ReplacementReason for the repair; '' for a partition that needs none.
    finding: str
    consequence: str
    #: Position of the last commit record, None without one; then the new position.
    old_position: int | None
    position: int
    keys: int
    old_digest: str
    digest: str
    transaction: int | None = None
    full: int | None = None


class Repaired(msgspec.Struct, frozen=True):
    """Result for all partitions; `lineage` is the new state generation, '' if nothing was written."""

    lineage: str
    partitions: list[RepairStep]


def run(
    settings: Settings, names: Names, handler: HandlerFactory, repair: Repair, reason: ReplacementReason, *, act: bool
) -> Repaired:
    """Repair a stopped service, one partition's state in memory at a time; without `act` only return the plan.

    :raises ToolRefused: the group has members, no partition needs the repair, or the repair does not help; nothing was
        changed. :raises StateRefused: a partition's state cannot be restored; run `rebase` first.
    """
    with closing(StoppedService(settings, names, handler, repair.name)) as stopped:
        facts = stopped.facts()
        count = _partitions(facts, names)
        if not act:
            steps, _ = _each(stopped, facts, count, repair, None)
            _require_work(steps, repair)
            return Repaired("", steps)
        with GroupLock(settings, names, stopped.admin, count, repair.name) as hold:
            stopped.fence(range(count))
            lineage = state_replacement.new_lineage()
            steps, adoptions = _each(stopped, facts, count, repair, lineage)
            _require_work(steps, repair)
            noted = msgspec.structs.replace(reason, notes={**reason.notes, **_notes(steps)})
            commit_records = stopped.replace_state(adoptions, hold.membership(), noted)
        for step in steps:
            step.transaction = commit_records[step.partition].n
        return Repaired(lineage, steps)


def _each(
    stopped: StoppedService, facts: Mapping[str, TopicFacts], count: int, repair: Repair, lineage: str | None
) -> tuple[list[RepairStep], list[Adoption]]:
    """Examine each partition. With a `lineage`, write its state as a full snapshot without a commit record."""
    steps, adoptions = [], []
    for partition in range(count):
        place = stopped.place(partition, count, facts)
        repaired = repair.examine(stopped, place)
        step = _step(place, repaired)
        steps.append(step)
        if lineage is not None:
            adoption = _adoption(stopped, place, repaired, lineage)
            step.full = adoption.base.offset if adoption.base else None
            adoptions.append(adoption)
    return steps, adoptions


def _adoption(stopped: StoppedService, place: Place, repaired: RepairedState, lineage: str) -> Adoption:
    like = msgspec.structs.replace(repaired.like, schemas=place.merged_schemas(repaired.like, repaired.state.tables))
    return msgspec.structs.replace(
        stopped.adoption(place, lineage, repaired.old, repaired.inputs, repaired.state, like),
        source=repaired.like,
        effects=repaired.like.effects,
        control=repaired.control,
        paused=repaired.like.paused,
        retries={topic: at for topic, at in repaired.like.positions.items() if place.names.is_for_retries(topic)},
    )


def _step(place: Place, repaired: RepairedState) -> RepairStep:
    old = repaired.old
    return RepairStep(
        partition=place.partition,
        finding=repaired.finding,
        consequence=repaired.consequence,
        old_position=old.position(place.input) if old is not None else None,
        position=sum(repaired.inputs.values()),
        keys=repaired.state.keys,
        old_digest=digest.show(old.digest) if old is not None else "",
        digest=digest.show(repaired.state.digest),
    )


def _notes(steps: list[RepairStep]) -> dict[str, str]:
    """Return the notes for every state-replacement record: each one lists all repaired partitions."""
    return {
        f"partition {step.partition}": (
            f"{step.finding}; position {'none' if step.old_position is None else step.old_position} -> "
            f"{step.position}; {step.consequence}"
        )
        for step in steps
        if step.finding
    }


def _require_work(steps: list[RepairStep], repair: Repair) -> None:
    if not any(step.finding for step in steps):
        raise ToolRefused(f"{repair.nothing()}. Nothing was changed")


def _partitions(facts: Mapping[str, TopicFacts], names: Names) -> int:
    """Return the number of partitions. :raises ToolRefused: the topics differ in it."""
    counts = {topic: facts[topic].partitions for topic in (*names.inputs, names.changelog, names.snapshot)}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise ToolRefused(
            f"the topics have different numbers of partitions: {listed}. Nothing was changed. Next: stop the producers "
            f"and run `statehold state repartition MODULE:SERVICE --to {max(counts.values())} --why TEXT --yes`"
        )
    return counts[names.input]
