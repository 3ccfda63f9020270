"""The repair that drops pending effects: those that this code cannot call, or those of named functions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from statehold.admin.repair.repair import RepairedState
from statehold.admin.state.stopped_service import StoppedService, inputs_at
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Effect
from statehold.worker.handler.pending_effects import by_function, obstacle


class DropEffects:
    """Continues without some pending effects, with the state and the positions as they are."""

    name = "repair drop-effects"

    def __init__(self, functions: Sequence[str] = ()) -> None:
        """`functions`: stored names, such as `shop.app:post`; none: all effects that this code cannot call."""
        self._functions = frozenset(functions)

    def examine(self, stopped: StoppedService, place: Place) -> RepairedState:
        found = stopped.find(place)
        last, handler = found.commit_record, stopped.engine(place.partition).handler
        if self._functions:
            dropped = [each for each in last.effects if each.function in self._functions]
        else:
            dropped = [each for each in last.effects if obstacle(handler, each)]
        inputs = inputs_at(last, place.names)
        if not dropped:
            return RepairedState(old=last, like=last, state=found.state, inputs=inputs)
        keys = {each.key for each in dropped}
        kept = tuple(each for each in last.effects if each.key not in keys)
        chosen = "are of the named functions" if self._functions else "cannot be called"
        return RepairedState(
            old=last,
            like=msgspec.structs.replace(last, effects=kept),
            state=found.state,
            inputs=inputs,
            finding=f"{len(dropped)} of {len(last.effects)} pending effects {chosen}: {by_function(dropped)}",
            consequence=f"their calls are not made: those of the records {_coordinates(dropped)}",
        )

    def nothing(self) -> str:
        return f"no pending effect is {'of a named function' if self._functions else 'one that this code cannot call'}"


def _coordinates(effects: Sequence[Effect]) -> str:
    """Return the records that requested these effects, the first and the last of each topic."""
    offsets: dict[str, list[int]] = {}
    for each in effects:
        offsets.setdefault(f"{each.topic}[{each.partition}]", []).append(each.offset)
    return ", ".join(
        f"{where}@{min(found)}" + (f" to {max(found)}" if len(set(found)) > 1 else "")
        for where, found in offsets.items()
    )
