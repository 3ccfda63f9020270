"""The repair that sets the time of partitions back, which a record from the future has advanced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from statehold.admin.repair.repair import RepairedState
from statehold.admin.state.stopped_service import StoppedService, inputs_at
from statehold.common.visible import distance, visible_time
from statehold.snapshot.format.partition_identity import Place
from statehold.state.kinds.clock import ClockTable
from statehold.state.kinds.joins import JoinTable
from statehold.state.kinds.timers import TimerTable
from statehold.state.kinds.ttl import DedupeTable, ExpiringTable
from statehold.state.kinds.windows import WindowTable
from statehold.state.partition_table import PartitionTable
from statehold.state.system_names import CLOCK, by_default_name


class SetTimeBack:
    """Continues with an earlier time. What has closed, fired or left stays so; what goes by the time is open again."""

    name = "repair time"

    def __init__(self, to: int, partitions: Sequence[int] = ()) -> None:
        """`to` in milliseconds since 1970. `partitions`: none: all whose time is later."""
        self._to, self._chosen = to, partitions

    def examine(self, stopped: StoppedService, place: Place) -> RepairedState:
        found = stopped.find(place)
        last, state = found.commit_record, found.state
        inputs = inputs_at(last, place.names)
        clock = by_default_name(state.tables).get(CLOCK)
        chosen = not self._chosen or place.partition in self._chosen
        if not chosen or not isinstance(clock, ClockTable) or clock.now <= self._to:
            return RepairedState(old=last, like=last, state=state, inputs=inputs)
        was, clock.now = clock.now, self._to
        reopened = [text for table in state.tables.values() for text in self._reopened(table, was)]
        state.commit(state.freeze(), delta=False)
        if stopped.settings.time.max_ahead == "off":
            reopened.append("time.max_ahead is off, so the next such record advances the time again")
        return RepairedState(
            old=last,
            like=last,
            state=state,
            inputs=inputs,
            finding=f"its time is {visible_time(was)}, {distance(was - self._to)} later than {visible_time(self._to)}",
            consequence="; ".join(reopened) or "nothing goes by the time yet",
        )

    def nothing(self) -> str:
        return f"no {'named ' if self._chosen else ''}partition has a time later than {visible_time(self._to)}"

    def _reopened(self, table: PartitionTable[Any, Any], was: int) -> Iterator[str]:
        """Say what is open again; let no key stay longer than it would by a put at the earlier time."""
        to, name = self._to, table.name
        if isinstance(table, WindowTable):
            later = sum(start > to for _, start, _ in table.stored)
            yield (
                f"{name}: windows that end after {visible_time(to - table.grace)} take records, also those that have "
                f"closed and close again with what comes now; {len(table.stored)} are open, {later} of them begin later"
            )
        elif isinstance(table, JoinTable):
            again = sum(to < table.due(row) <= was for row in table.stored)
            later = sum(row[2] > to for row in table.stored)
            yield f"{name}: {again} records join again; {len(table.stored)} are kept, {later} of them are later"
        elif isinstance(table, TimerTable):
            later = sum(timer.due > was for timer in table.values())
            end = visible_time(was)
            yield f"timers: {len(table.stored)} are set, {later} of them are due after {end}; none fires again"
        elif isinstance(table, DedupeTable | ExpiringTable) and (expiries := table.expiries) is not None:
            latest = to + table.kept_for
            again = sum(to < when <= was for when in expiries.values())
            long = [key for key, when in expiries.items() if when > latest]
            for key in long:
                expiries[key] = latest
            yield f"{name}: {again} expired keys are there again, {len(long)} now expire at {visible_time(latest)}"
