"""Makes of a rebuilt partition what replaces the state of the service, or says why it must not."""

from __future__ import annotations

from typing import Final

import msgspec

from statehold.admin.state.open_failures import unresolved_failures
from statehold.admin.state.stopped_service import LastState, StoppedService, inputs_at
from statehold.errors import ToolRefused
from statehold.rebuild.partition import RebuiltPartition
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.state_replacement import Adoption

#: the end of an error of the stopped service
START_AGAIN: Final = "Nothing was changed. Next: start the service again"


def adoption_of(stopped: StoppedService, made: RebuiltPartition, last: CommitRecord, lineage: str) -> Adoption:
    """Write the state of a finished partition as a full snapshot, which no commit record names yet.

    :raises ToolRefused: the service must not continue from this state.
    """
    partition, inputs = made.place.partition, inputs_at(last, stopped.names)
    if {topic: made.positions[topic] for topic in inputs} != inputs:
        raise ToolRefused(
            f"{made.place.input}[{partition}]: rebuild the state: the service has committed {inputs}, the rebuilt "
            f"state is at {dict(made.positions)}. {START_AGAIN}"
        )
    obstacles = [*made.report.obstacles]
    if text := unresolved_failures(stopped, LastState(last, made.state), partition):
        obstacles.append(text)
    if obstacles:
        raise ToolRefused(
            f"{made.place.input}[{partition}]@{made.position}: continue from the rebuilt state: "
            f"{'; '.join(obstacles)}. {START_AGAIN}; `statehold dlq list` and `statehold lag` show what waits. Or "
            f"change the code, and run the command again"
        )
    place = stopped.place(partition, last.partitions, stopped.facts())
    adoption = stopped.adoption(place, lineage, last, inputs, made.state, made.recorded(last, place))
    made.report.full = adoption.base.offset if adoption.base is not None else None
    return msgspec.structs.replace(adoption, effects=last.effects)
