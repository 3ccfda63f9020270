"""Which fault happens when: a function of the seed and of what was asked for, and of nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.chaos import asking as _a  # noqa: F401  registers its faults
from tests.chaos import broker_faults as _  # noqa: F401  and this
from tests.chaos import calling as _r  # noqa: F401  and this
from tests.chaos import coordinators as _c  # noqa: F401  so does this
from tests.chaos.arena import ORDER, Shape
from tests.chaos.faults import REGISTRY, Fault

_FIRST = 4.0
_GAPS = (1.0, 9.0)
#: how often a fault begins while the one before it still lasts
_OVERLAP = 0.3

#: in which the service runs, drawn with the schedule
MODES: dict[str, dict[str, str]] = {
    "delta in every commit": {},
    "delta every second": {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "1"},
    "marks only": {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "off"},
}
PROTOCOLS: dict[str, dict[str, str]] = {"classic": {}, "consumer": {"STATEHOLD_GROUP__PROTOCOL": "consumer"}}

#: how a service with two inputs merges them
ORDERS: dict[str, dict[str, str]] = {
    "by time": {},
    "by time, idle inputs awaited": {"STATEHOLD_INPUTS__IDLE": "0.2"},
    "by arrival": {ORDER: "arrival"},
}


class Planned(NamedTuple):
    """A fault with the second at which it begins."""

    at: float
    fault: Fault


def usual(shape: Shape) -> list[str]:
    """The faults that are drawn when none are named."""
    return [code for code, kind in REGISTRY.items() if kind.usual and _fits(kind, shape)]


def plan(seed: int, seconds: float, codes: Sequence[str], shape: Shape) -> list[Planned]:
    """Faults until `seconds` have passed, at least one of each code if there is time for it."""
    for code in codes:
        kind = REGISTRY[code]
        if not _fits(kind, shape):
            raise ValueError(f"{code} ({kind.title}) does not fit this run: {shape}")
    draw = random.Random(seed)
    planned: list[Planned] = []
    at, waiting = _FIRST, list[str]()
    while at < seconds:
        if not waiting:  # each kind once before any comes again
            waiting = draw.sample(list(codes), len(codes))
        fault = REGISTRY[waiting.pop()](draw)
        planned.append(Planned(round(at, 2), fault))
        at += draw.uniform(*_GAPS) + (0.0 if draw.random() < _OVERLAP else fault.hold)
    return planned


def mode(seed: int, *, failing: bool = False) -> tuple[str, dict[str, str]]:
    """How the service runs under this seed: name and settings; records that fail need deltas."""
    draw = random.Random(f"mode {seed}")
    modes = MODES | {"marks only": {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "60"}} if failing else MODES
    dial, protocol = draw.choice(list(modes)), draw.choice(list(PROTOCOLS))
    return f"{protocol}, {dial}", modes[dial] | PROTOCOLS[protocol]


def inputs(seed: int) -> tuple[int, str, dict[str, str]]:
    """How many inputs the service reads under this seed: their number, and what is added to the mode and its settings.

    Half of the seeds have two. Records that fail by design come by one.
    """
    draw = random.Random(f"inputs {seed}")
    if draw.random() < 0.5:
        return 1, "", {}
    order = draw.choice(list(ORDERS))
    return 2, f", two inputs {order}", ORDERS[order]


def _fits(kind: type[Fault], shape: Shape) -> bool:
    if (kind.calls and not shape.calls) or (kind.asks and not shape.askers):
        return False
    enough = shape.brokers >= kind.brokers and (shape.proxied or not kind.proxied)
    return enough and (shape.target == "statehold" or not kind.only_statehold)
