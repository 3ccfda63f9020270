"""`statehold state migrate`: edits the state of a stopped service; one transaction replaces all partitions (S6)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from functools import partial

import msgspec

from statehold.admin.state.split_merge import SplitMerge, TablesFunction
from statehold.admin.state.stopped_service import LastState, StoppedService, inputs_at
from statehold.api.handler import HandlerFactory
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import StateholdError, TableTypeChanged, ToolRefused, UnknownSchema
from statehold.kafka.admin.admin import TopicFacts
from statehold.kafka.tools.group_lock import GroupLock
from statehold.snapshot import state_replacement
from statehold.snapshot.state_edits import Counts, Edit, Edits, Patch
from statehold.snapshot.state_replacement import Adoption, ReplacementReason
from statehold.state import digest

TOOL = "state migrate"


class Migrated(msgspec.Struct, kw_only=True):
    """Result for one partition; `transaction` and `full` are None in a dry run."""

    partition: int
    position: int
    counts: Counts
    old_digest: str
    digest: str
    #: by table, keys before and after, of a migration that has the handlers of both releases
    tables: dict[str, tuple[int, int]] = {}
    transaction: int | None = None
    full: int | None = None


class Migration(msgspec.Struct, frozen=True):
    """Result for all partitions. `lineage` is the new state generation, '' in a dry run."""

    lineage: str
    partitions: list[Migrated]


def migrate(
    settings: Settings,
    names: Names,
    handler: HandlerFactory,
    functions: Mapping[str, Edit],
    patches: Sequence[Patch],
    reason: ReplacementReason,
    *,
    dry_run: bool = False,
) -> Migration:
    """Edit the state of every partition of a stopped service, one partition in memory at a time.

    :raises ToolRefused: the group has members, or a state differs from its last commit record; nothing was changed.
    :raises StateRefused: a partition could not be restored. :raises UsageError: a function or a patch is wrong.
    """
    with closing(StoppedService(settings, names, handler, TOOL)) as stopped:
        edits = Edits(functions, patches, stopped.new_state(0).tables)
        facts = stopped.facts()
        count = facts[names.input].partitions
        return replace_states(stopped, count, partial(_each, stopped, facts, edits), reason, dry_run=dry_run)


def split_or_merge(
    settings: Settings,
    names: Names,
    handler: HandlerFactory,
    function: TablesFunction,
    reason: ReplacementReason,
    *,
    dropped: Collection[str] = (),
    dry_run: bool = False,
) -> Migration:
    """Let a function make the tables of `handler` from those of the release before, as `migrate` edits values.

    `dropped`: tables of the release before whose keys are deleted. Raises as `migrate`.
    """
    work = SplitMerge(function, handler, names, dropped)
    with (
        closing(StoppedService(settings, names, work.old, TOOL)) as before,
        closing(StoppedService(settings, names, handler, TOOL)) as stopped,
    ):
        facts = stopped.facts()
        count = facts[names.input].partitions
        edit = partial(_split_or_merged, before, stopped, facts, work)
        return replace_states(stopped, count, edit, reason, dry_run=dry_run)


def replace_states(
    stopped: StoppedService,
    count: int,
    edit: Callable[[str | None], tuple[list[Migrated], list[Adoption]]],
    reason: ReplacementReason,
    *,
    dry_run: bool,
) -> Migration:
    """Replace the states of all partitions by those that `edit` writes into a new state generation.

    In a dry run `edit` gets None and writes nothing.
    """
    if dry_run:
        return Migration("", edit(None)[0])
    with GroupLock(stopped.settings, stopped.names, stopped.admin, count, TOOL) as hold:
        stopped.fence(range(count))
        lineage = state_replacement.new_lineage()
        done, adoptions = edit(lineage)
        commit_records = stopped.replace_state(adoptions, hold.membership(), reason)
    for each in done:
        each.transaction = commit_records[each.partition].n
    return Migration(lineage, done)


def _each(
    stopped: StoppedService, facts: Mapping[str, TopicFacts], edits: Edits, lineage: str | None
) -> tuple[list[Migrated], list[Adoption]]:
    """Edit each partition in turn. With a `lineage`, write it as a full snapshot, not yet named by a commit record."""
    done, adoptions, count = [], [], facts[stopped.names.input].partitions
    for partition in range(count):
        place = stopped.place(partition, count, facts)
        found = stopped.find(msgspec.structs.replace(place, types=edits.read_types(place.types)))
        state = stopped.new_state(partition)
        counts = edits.apply(partition, found.state, state)
        inputs = inputs_at(found.commit_record, place.names)
        each = Migrated(
            partition=partition,
            position=sum(inputs.values()),
            counts=counts,
            old_digest=digest.show(found.commit_record.digest),
            digest=digest.show(state.digest),
        )
        if lineage is not None:
            like = msgspec.structs.replace(
                found.commit_record,
                schemas=place.merged_schemas(found.commit_record, edits.tables),
                types=edits.kept_types(found.commit_record.types),
            )
            adoption = stopped.adoption(place, lineage, found.commit_record, inputs, state, like)
            each.full = adoption.base.offset if adoption.base else None
            adoptions.append(msgspec.structs.replace(adoption, effects=found.commit_record.effects))
        done.append(each)
    edits.require_used()
    return done, adoptions


def _split_or_merged(
    before: StoppedService,
    stopped: StoppedService,
    facts: Mapping[str, TopicFacts],
    work: SplitMerge,
    lineage: str | None,
) -> tuple[list[Migrated], list[Adoption]]:
    """Do what `_each` does. `before` reads the states with the old release."""
    done, adoptions, count = [], [], facts[stopped.names.input].partitions
    for partition in range(count):
        found = _of_old_release(before, stopped, partition, facts)
        moved, last = work.apply(partition, found.state), found.commit_record
        place = stopped.place(partition, count, facts)
        like = moved.recorded(last, place)
        inputs = inputs_at(last, place.names)
        each = Migrated(
            partition=partition,
            position=sum(inputs.values()),
            counts=moved.counts,
            old_digest=digest.show(last.digest),
            digest=digest.show(moved.state.digest),
            tables=moved.keys,
        )
        if lineage is not None:
            adoption = stopped.adoption(place, lineage, last, inputs, moved.state, like)
            each.full = adoption.base.offset if adoption.base else None
            adoptions.append(msgspec.structs.replace(adoption, effects=last.effects))
        done.append(each)
    return done, adoptions


def _of_old_release(
    before: StoppedService, stopped: StoppedService, partition: int, facts: Mapping[str, TopicFacts]
) -> LastState:
    """Read a state with the old release. :raises ToolRefused: the new one has it already."""
    count = facts[stopped.names.input].partitions
    try:
        return before.find(before.place(partition, count, facts))
    except (UnknownSchema, TableTypeChanged) as error:
        try:
            stopped.find(stopped.place(partition, count, facts))
        except StateholdError:
            raise error from None
        raise ToolRefused(
            f"partition {partition}: {before.kind.__name__} cannot read the state, and {stopped.kind.__name__} can: it "
            f"was migrated before. Nothing was changed. Next: start the new release"
        ) from error
