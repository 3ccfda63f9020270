"""Settings of the doctor: when it runs, and the limits that it checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from statehold.config.common.option import Section, choice, seconds
from statehold.config.sections.processing import DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings(Section, name="doctor"):
    """`statehold doctor`, and the same checks at the start of `statehold run`."""

    at_start: Literal["off", "warn", "fail"] = choice(
        "off",
        "warn: `statehold run` runs the checks in parallel with the start and logs each problem. fail: it runs "
        "them first, and does not start if one fails. Neither writes anything. off: only a service of several inputs "
        "checks, in parallel, that their keys follow one partitioner.",
    )
    longest_outage: float = seconds(
        2 * DAY,
        "Longest time that the service may be down. The input and the group's offsets must be retained for longer.",
        low=60.0,
        high=365 * DAY,
    )
    clock_tolerance: float = seconds(
        1.0,
        "How far a broker's clock may differ from this machine's. No decision depends on clocks, but people "
        "compare times in records and logs.",
        low=0.001,
        high=3600.0,
    )
