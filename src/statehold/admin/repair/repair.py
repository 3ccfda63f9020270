"""`statehold repair`: a stopped service goes on where it was refused, by an operator's word, which stays in the log.

Every repair ends one lineage and begins another in one transaction over all partitions (rule S6): what was mended and
what was left as it is go on together, and each adopt record says who, why, from where and to where.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Protocol

import msgspec

from statehold.admin.state.stopped_service import HandlerOf, StoppedService
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import ToolRefused
from statehold.kafka.admin.admin import TopicFacts
from statehold.kafka.tools.group_lock import GroupHold
from statehold.snapshot import state_replacement
from statehold.snapshot.format import digest
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Mark
from statehold.snapshot.state import State
from statehold.snapshot.state_replacement import Adoption, Reason


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """What one partition goes on from, as a repair has found it."""

    #: the last mark; None where no mark is left
    old: Mark | None
    #: what is known of the state's own past: `old`, or what a full says
    like: Mark
    state: State
    position: int
    #: next offset of the control topic; None: as in `old`
    control: int | None = None
    #: why it is repaired; '' for a partition that only comes along
    finding: str = ""
    #: what becomes of the records between the old position and the new one
    consequence: str = ""


class Repair(Protocol):
    """One kind of repair; `name` is its command."""

    name: str

    def mend(self, stopped: StoppedService, place: Place) -> Mended:
        """Look at one partition, and change nothing.

        :raises ToolRefused, StateRefused: this repair does not help it.
        """
        ...

    def nothing(self) -> str:
        """What to say when no partition needs it."""
        ...


class Step(msgspec.Struct, kw_only=True):
    """What becomes of one partition; `transaction` and `full` are None when nothing was written."""

    partition: int
    #: '' for one that only comes along into the new lineage
    finding: str
    consequence: str
    #: next input offset by the last mark, None where there is none; and from now on
    old_position: int | None
    position: int
    keys: int
    old_digest: str
    digest: str
    transaction: int | None = None
    full: int | None = None


class Repaired(msgspec.Struct, frozen=True):
    """All partitions; `lineage` is the new one, '' where nothing was written."""

    lineage: str
    partitions: list[Step]


def run(settings: Settings, names: Names, handler: HandlerOf, repair: Repair, reason: Reason, *, act: bool) -> Repaired:
    """Repair a stopped service; without `act` only tell what would be done. Holds one partition's state at a time.

    :raises ToolRefused: the group has members, nothing is to be repaired, or this repair does not help; nothing was
        changed. :raises StateRefused: a partition's state cannot be restored: `rebase` comes first.
    """
    with closing(StoppedService(settings, names, handler, repair.name)) as stopped:
        facts = stopped.facts()
        count = _partitions(facts, names)
        if not act:
            steps, _ = _each(stopped, facts, count, repair, None)
            _require_work(steps, repair)
            return Repaired("", steps)
        with GroupHold(settings, names, stopped.admin, count) as hold:
            stopped.fence(range(count))
            lineage = state_replacement.new_lineage()
            steps, adoptions = _each(stopped, facts, count, repair, lineage)
            _require_work(steps, repair)
            noted = msgspec.structs.replace(reason, notes={**reason.notes, **_notes(steps)})
            marks = stopped.adopt(adoptions, hold.membership(), noted)
        for step in steps:
            step.transaction = marks[step.partition].n
        return Repaired(lineage, steps)


def _each(
    stopped: StoppedService, facts: Mapping[str, TopicFacts], count: int, repair: Repair, lineage: str | None
) -> tuple[list[Step], list[Adoption]]:
    """Every partition in turn; with a lineage its state is written as a full, which no mark refers to yet."""
    steps, adoptions = [], []
    for partition in range(count):
        place = stopped.place(partition, count, facts)
        mended = repair.mend(stopped, place)
        step = _step(place, mended)
        steps.append(step)
        if lineage is not None:
            adoption = _adoption(stopped, place, mended, lineage)
            step.full = adoption.base.offset if adoption.base else None
            adoptions.append(adoption)
    return steps, adoptions


def _adoption(stopped: StoppedService, place: Place, mended: Mended, lineage: str) -> Adoption:
    n = 0 if mended.old is None else mended.old.n + 1
    like = msgspec.structs.replace(mended.like, schemas=place.merged_schemas(mended.like, mended.state.tables))
    base = stopped.write(place, lineage, n, mended.position, mended.state, like)
    return Adoption(
        place=place,
        old=mended.old,
        source=mended.like,
        lineage=lineage,
        base=base,
        digest=mended.state.digest,
        keys=mended.state.keys,
        position=mended.position,
        effects=mended.like.effects,
        schemas=like.schemas,
        control=mended.control,
        retries={topic: at for topic, at in mended.like.positions.items() if place.names.is_for_retries(topic)},
    )


def _step(place: Place, mended: Mended) -> Step:
    old = mended.old
    return Step(
        partition=place.partition,
        finding=mended.finding,
        consequence=mended.consequence,
        old_position=old.positions.get(place.input) if old is not None else None,
        position=mended.position,
        keys=mended.state.keys,
        old_digest=digest.show(old.digest) if old is not None else "",
        digest=digest.show(mended.state.digest),
    )


def _notes(steps: list[Step]) -> dict[str, str]:
    """Every adopt record tells of all partitions that were repaired: whoever finds one need not look for the others."""
    return {
        f"partition {step.partition}": (
            f"{step.finding}; position {'none' if step.old_position is None else step.old_position} -> "
            f"{step.position}; {step.consequence}"
        )
        for step in steps
        if step.finding
    }


def _require_work(steps: list[Step], repair: Repair) -> None:
    if not any(step.finding for step in steps):
        raise ToolRefused(f"{repair.nothing()}. Nothing was changed")


def _partitions(facts: Mapping[str, TopicFacts], names: Names) -> int:
    """:raises ToolRefused: the topics do not have the same number of partitions."""
    counts = {topic: facts[topic].partitions for topic in (names.input, names.changelog, names.snapshot)}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise ToolRefused(
            f"the topics differ in their partitions: {told}. `statehold state repartition` comes first; nothing was "
            f"changed"
        )
    return counts[names.input]
