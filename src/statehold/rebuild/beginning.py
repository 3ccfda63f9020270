"""Finds the state from which a partition is rebuilt, and whether the input after it is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

from statehold.api.handler import Handler
from statehold.errors import RetentionGap, ToolRefused
from statehold.ports import Reader
from statehold.rehearsal.source import RehearsalSource
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.inspect import past
from statehold.snapshot.inspect.contents import Contents
from statehold.snapshot.inspect.past import PastState

#: the point before the first record
BEGINNING: Final = "beginning"
#: a state that is the sum of no values
_EMPTY: Final = bytes(16)


class StartingState(NamedTuple):
    """Where the rebuild of a partition begins."""

    state: PastState
    #: the commit records begin at this position of the only input: the records before it have their order from it
    recorded_from: int
    #: when the first of them was written, in milliseconds since 1970; 0: all of them are kept
    recorded_at: int
    notes: Sequence[str] = ()


def starting_state(
    source: RehearsalSource, reader: Reader, place: Place, kind: type[Handler[Any]], since: str
) -> StartingState:
    """Return the state at the point `since`, or an empty one before the first record.

    :raises UsageError: the point is not stored any more. :raises ToolRefused: the state did not begin with its input,
        or the order of its records is not known any more.
    """
    if since != BEGINNING:
        found = past.at(reader, place, source.point(place.partition, since))
        return StartingState(found, found.position, 0)
    with closing(past.increments(reader, place)) as increments:
        first = next(increments, None)
    if first is None:
        raise ToolRefused(f"{place.names.changelog}[{place.partition}]: rebuild the state: there is no transaction")
    record, by_tool = first.commit_record, first.replacement
    came_from_elsewhere = by_tool is not None and place.input not in by_tool.old_positions
    if record.n > 0 and not came_from_elsewhere:
        note = require_order_of_input(place, kind, record, {})
        state = empty_state(place, record.n - 1, {place.input: 0}, "")
        return StartingState(state, max(0, record.start), record.time, [note])
    if record.keys or by_tool is not None:
        by = by_tool.tool if by_tool is not None else record.writer.instance
        raise ToolRefused(
            f"{place.input}[{place.partition}]: rebuild from the beginning: the state did not begin empty: {by} put "
            f"{record.keys} keys into its first transaction, which no kept record explains. Nothing was changed. "
            f"Next: `--from n:{record.n}` begins with that state"
        )
    return StartingState(empty_state(place, 0, record.positions, record.lineage), record.position(place.input), 0)


def require_order_of_input(
    place: Place, kind: type[Handler[Any]], first: CommitRecord, handled: Mapping[str, int]
) -> str:
    """Require that the records before the first commit record that is left have the order of their offsets.

    `handled`: positions of what is handled already. Return what is not known of them.

    :raises ToolRefused: they have not.
    """
    names, where = place.names, f"{place.input}[{place.partition}]"
    begins = f"the changelog begins with transaction {first.n} at position {first.start}"
    if names.others:
        raise ToolRefused(
            f"{where}: rebuild the state: {begins}, and only commit records know the order of several inputs. Nothing "
            f"was changed. Next: name a point that is stored, such as --from n:{first.n}"
        )
    commands = first.positions.get(names.control, 0) > handled.get(names.control, 0)
    if kind.on_command is not Handler.on_command and commands:
        raise ToolRefused(
            f"{where}: rebuild the state: {begins}, and {kind.__name__} got commands before it, whose place among the "
            f"records only the deleted commit records had. Nothing was changed. Next: name a point that is stored, "
            f"such as --from n:{first.n}"
        )
    return (
        f"{begins}: the records before it are handled in the order of the input, from its first one on, whether the "
        f"service began there or later; timers that fired while the partition was idle fire before the next record, "
        f"retries after the last one, and time.max_ahead counts from the time of that transaction"
    )


def empty_state(place: Place, n: int, positions: Mapping[str, int], lineage: str) -> PastState:
    """Return the state of no keys after transaction `n`. `lineage`: '' for that of the next transaction."""
    position = sum(positions[topic] for topic in place.names.inputs)
    return PastState(
        Contents(), n, position, positions, _EMPTY, 0, lineage, None, 0, place.names.inputs, schemas={}, types={}
    )


def missing_input(reader: Reader, place: Place, start: StartingState) -> list[str]:
    """Describe the records that the rebuild needs and retention has deleted."""
    found = []
    for topic in place.names.inputs:
        oldest, needed = reader.bounds(topic, place.partition)[0], start.state.positions[topic]
        if oldest > needed:
            found.append(f"{topic}[{place.partition}]: needed from offset {needed} on, the oldest kept one is {oldest}")
    return found


def require_input(place: Place, missing: Sequence[str], since: str) -> None:
    """:raises RetentionGap: records are missing."""
    if missing:
        raise RetentionGap(
            f"rebuild from {since}: retention has deleted records that the new code would have to handle: "
            f"{'; '.join(missing)}. Nothing was changed. Next: name a later point: `statehold snapshot list` shows the "
            f"stored ones, and their positions",
            topic=place.input,
            partition=place.partition,
        )
