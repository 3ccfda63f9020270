"""Replaces the states of a stopped service in memory, all partitions in one transaction, as a tool does (rule S6)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from statehold.admin.state.split_merge import SplitMerge
from statehold.bound.attributes import schemas, table_types
from statehold.bound.handler import new_state
from statehold.bound.topics import class_of
from statehold.snapshot import state_replacement
from statehold.snapshot.format import recorded_types
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.full import FullWriter
from statehold.snapshot.restore.restore import restore
from statehold.snapshot.state_replacement import Adoption, ReplacementReason
from statehold.testing.memory.broker import MemoryBroker
from statehold.testing.memory.clients import MemoryFullSink, MemoryReader, MemoryTransactions

_REASON = ReplacementReason(tool="state migrate", who="driver", why="Driver.upgrade")


def migrate_states(broker: MemoryBroker, places: Mapping[int, Place], work: SplitMerge, chunk_bytes: int) -> None:
    """Split or merge tables as `statehold state migrate --handlers` does. No worker may run.

    :raises UsageError, StateRefused: as `SplitMerge.apply`, and a restore; nothing was changed.
    :raises ToolRefused: the stored state is older than the last commit record.
    """
    lineage, now = state_replacement.new_lineage(), broker.clock.wall()
    producers, adoptions = {}, []
    for partition, place in places.items():
        producers[partition] = MemoryTransactions(broker, place.names, partition)
        producers[partition].fence(lambda: False)
        adoptions.append(_adoption(broker, place, work, lineage, now, chunk_bytes))
    state_replacement.commit(producers[min(producers)], broker.generation, adoptions, _REASON, now)


def _adoption(
    broker: MemoryBroker, place: Place, work: SplitMerge, lineage: str, now: float, chunk_bytes: int
) -> Adoption:
    old, new, names = work.old, class_of(work.factory), place.names
    before = msgspec.structs.replace(place, schemas=schemas(old), types=table_types(old))
    reader = MemoryReader(broker, lambda: False)
    found = restore(reader, before, lambda: new_state(old, traced=False, track_delta=False), _ignore, broker.clock)
    last = found.commit_record
    state_replacement.require_current(place, last, found.position, found.state)
    moved = work.apply(place.partition, found.state)
    place = msgspec.structs.replace(place, schemas=schemas(new), types=table_types(new))
    state, like = moved.state, moved.recorded(last, place)
    inputs = {topic: last.positions[topic] for topic in names.inputs}
    types = recorded_types.of_state(like, place.types, state.used, place.input)
    shown = state_replacement.boundary(place, lineage, last.n + 1, inputs, state, like, now)
    end = broker.log(names.changelog, place.partition).end
    sink = MemoryFullSink(broker, names.snapshot, place.partition)
    writer = FullWriter(place, state, shown, end, -1, sink, chunk_bytes)
    return Adoption(
        place=place,
        old=last,
        lineage=lineage,
        base=writer.advance(shown.n, -1.0, broker.clock) if state.keys else None,
        digest=state.digest,
        keys=state.keys,
        inputs=inputs,
        effects=last.effects,
        schemas=like.schemas,
        types=types,
    )


def _ignore(event: str, fields: dict[str, object]) -> None:
    """Take no note of what a restore notices."""
