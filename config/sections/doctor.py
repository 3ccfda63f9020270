"""Settings of the doctor: when it looks by itself, and what it holds the cluster against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from statehold.config.common.option import check_section, choice, seconds
from statehold.config.sections.processing import DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorSettings:
    """`statehold doctor`, and the same checks at the start of `statehold run`."""

    at_start: Literal["off", "warn", "fail"] = choice(
        "off",
        "warn: `statehold run` looks beside the start and logs what is not good. fail: it looks first, and does not "
        "start when a check fails. Neither writes anything.",
        "off",
        "warn",
        "fail",
    )
    longest_outage: float = seconds(
        2 * DAY,
        "The longest time that the service may be down: the input and the group's offsets must be kept for longer.",
        low=60.0,
        high=365 * DAY,
    )
    clock_tolerance: float = seconds(
        1.0,
        "How far a broker's clock may differ from this machine's. Nothing is decided by clocks, but times in records "
        "and logs are compared by people.",
        low=0.001,
        high=3600.0,
    )

    def __post_init__(self) -> None:
        check_section(self, "doctor")
