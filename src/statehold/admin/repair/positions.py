"""The repairs that leave the state as it is and change where it goes on: `accept-gap` and `adopt-offsets`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from statehold.admin.repair.repair import Mended
from statehold.admin.state.stopped_service import LastState, StoppedService
from statehold.errors import NoMark, ToolRefused
from statehold.snapshot.format import digest
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Mark

#: an offset, or a place in the input as it is now
Target = int | Literal["beginning", "end"]


class AcceptGap:
    """The records that come next are gone, or are other records: go on behind them, with the state as it is."""

    name = "repair accept-gap"

    def __init__(self, targets: Mapping[int, Target] | Target | None = None) -> None:
        """`targets`: where to go on, for all partitions that have a gap, or for those that are named."""
        self._targets = targets

    def mend(self, stopped: StoppedService, place: Place) -> Mended:
        mark = required_mark(stopped, place)
        position = mark.positions[place.input]
        replaced = mark.topic_ids.get(place.input, "") not in ("", place.topic_ids[place.input])
        low, end = stopped.bounds(place.input, place.partition)
        finding = _gap(position, low, end, replaced=replaced)
        target = self._target(place, low, end, finding, must_choose=replaced or position > end)
        found = stopped.find(as_marked(place, mark)) if not finding else _whole(stopped, as_marked(place, mark), low)
        if not finding:
            return Mended(old=found.mark, like=found.mark, state=found.state, position=position)
        lost = f"{target - position} offsets are passed over" if target > position else "nothing is passed over"
        return Mended(
            old=found.mark,
            like=found.mark,
            state=found.state,
            position=target,
            finding=finding,
            consequence="the new topic's records are handled from there on" if replaced else lost,
        )

    def nothing(self) -> str:
        return "no partition has a gap: the next record of each is there, or still to come"

    def _target(self, place: Place, low: int, end: int, finding: str, *, must_choose: bool) -> int:
        """:raises ToolRefused: none was chosen where one must be, or it is not in the topic."""
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
                f"{where}: {finding}. What there is begins at {low} and ends at {end}: say where to go on, --to "
                f"beginning, --to end, or --to {place.partition}=OFFSET. Nothing was changed"
            )
        target = {"beginning": low, "end": end, None: low}.get(chosen, chosen)  # type: ignore[arg-type]
        assert isinstance(target, int)
        if not low <= target <= end:
            raise ToolRefused(f"{where} holds offsets {low} to {end}, not {target}. Nothing was changed")
        return target


class AdoptOffsets:
    """Group offset and mark tell different positions: one of them is right, and the operator says which."""

    name = "repair adopt-offsets"

    def __init__(self, source: Literal["mark", "group"]) -> None:
        self._source = source

    def mend(self, stopped: StoppedService, place: Place) -> Mended:
        found = stopped.find(place)
        position = found.mark.positions[place.input]
        committed = stopped.admin.committed(place.input, place.partition)
        plain = Mended(old=found.mark, like=found.mark, state=found.state, position=position)
        if committed is None or committed in (position, found.mark.start):
            return plain
        finding = f"the group has committed {committed}, the last mark says {position}"
        if self._source == "mark":
            return msgspec.structs.replace(plain, finding=finding, consequence="the group's offset is set to the mark")
        low, end = stopped.bounds(place.input, place.partition)
        if not low <= committed <= end:
            raise ToolRefused(
                f"{place.input}[{place.partition}] holds offsets {low} to {end}, the group has committed {committed}: "
                f"nothing can go on there. Nothing was changed"
            )
        told = (
            f"{committed - position} offsets are passed over"
            if committed > position
            else f"{position - committed} offsets are handled again: their outputs come twice"
        )
        return msgspec.structs.replace(plain, position=committed, finding=finding, consequence=told)

    def nothing(self) -> str:
        return "group offsets and marks agree in every partition"


def required_mark(stopped: StoppedService, place: Place) -> Mark:
    """:raises NoMark: there is none."""
    mark = stopped.mark(place.partition)
    if mark is None:
        raise NoMark(
            f"{place.names.changelog} holds no mark: `statehold repair rebase` looks for a full, or begin anew with "
            f"`statehold topics create --start-at ...`. Nothing was changed",
            topic=place.input,
            partition=place.partition,
        )
    return mark


def as_marked(place: Place, mark: Mark) -> Place:
    """The same place under the id that the input had then: its state does not depend on what the input holds now."""
    known = {topic: mark.topic_ids.get(topic, now) for topic, now in place.topic_ids.items() if topic == place.input}
    return msgspec.structs.replace(place, topic_ids=place.topic_ids | known)


def _gap(position: int, low: int, end: int, *, replaced: bool) -> str:
    if replaced:
        return f"the input was deleted and created again; the last mark is at {position} of the old one"
    if position < low:
        return f"offsets {position} to {low} are gone: the input begins at {low}"
    if position > end:
        return f"the input ends at {end}, and {position} comes next: records that were handled are gone"
    return ""


def _whole(stopped: StoppedService, place: Place, low: int) -> LastState:
    """The state at the last mark, which needs none of the records that are gone.

    :raises ToolRefused: it would need them.
    """
    found, newest = stopped.newest(place)
    position = found.mark.positions[place.input]
    if newest != position or digest.to_bytes(found.state.digest) != found.mark.digest:
        raise ToolRefused(
            f"{place.input}[{place.partition}]: the state at the last mark ({position}) follows from the records from "
            f"{newest} on, and the input begins at {low}: it is lost. `statehold repair rebase` goes on from an older "
            f"state. Nothing was changed"
        )
    return found
