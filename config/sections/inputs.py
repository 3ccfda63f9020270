"""Settings of a service with several inputs, and of one that sends to itself by another key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from statehold.config.common.option import Section, choice, count, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class InputsSettings(Section, name="inputs"):
    """The order of the records of several inputs. A service with one input uses none of these."""

    order: Literal["time", "arrival"] = choice(
        "time",
        "Which record comes next. time: the one with the lowest timestamp; an input that has records on the broker is "
        "waited for. arrival: the one that came first. A replay repeats the order in both cases.",
    )
    idle: float = seconds(
        0.0,
        "With order time: how long an input that has no more records is waited for, in case one with a lower timestamp "
        "comes. It delays every record by up to this time whenever another input is quiet.",
        low=0.0,
        high=3600.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RekeySettings(Section, name="rekey"):
    """Records that a service sends to itself by another key. A service without a `Rekey` uses none of these."""

    max_hops: int = count(
        100,
        "Most sends of a `Rekey` by which a record may come, because a handler that sends to itself without an end "
        "would fill the topic. A send beyond it raises `RekeyLoop`; from half of it on the service warns.",
        low=1,
        high=65_535,
    )
    keep: Literal["snapshots", "all"] = choice(
        "snapshots",
        "Which records stay in the topic of a `Rekey` once their partition has handled them. snapshots: those that a "
        "kept full snapshot of the partition does not cover; the others are deleted with the changelog. all: all of "
        "them, for points in time, replays and rehearsals that begin further back.",
    )
