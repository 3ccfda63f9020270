"""A schedule: what happens at which place of a run, drawn from a seed or listed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from statehold.errors import KafkaTrouble, OutcomeUnknown, RestoreTimeout, TransactionAborted, UsageError
from statehold.testing.kafka.faults import CallFault, PortCall

#: errors that a client raises, by the name that a schedule uses
_ERRORS: Final[dict[str, BaseException]] = {
    "unknown": OutcomeUnknown("the answer was lost"),
    "aborted": TransactionAborted("a request of the transaction failed"),
    "stale": TransactionAborted("ILLEGAL_GENERATION", stale=True),
    "trouble": KafkaTrouble("the broker answered with an error"),
    "timeout": RestoreTimeout("the broker delivered nothing"),
}


class Intervention(NamedTuple):
    """Something that happens at one place, such as `kill`, `halt 20`, or `fail-after unknown`."""

    kind: str
    argument: str = ""

    @property
    def of_process(self) -> bool:
        """It concerns the whole process and not one call."""
        return self.kind in ("kill", "halt", "cut")

    @property
    def seconds(self) -> float:
        return float(self.argument)

    def fault(self, call: PortCall) -> CallFault | None:
        """Return what happens to the call."""
        match self.kind:
            case "slow":
                return CallFault(delay=self.seconds)
            case "lost":
                return CallFault(never=True)
            case "lost-after":
                return CallFault(never=True, after=True)
            case "copy":
                return CallFault(copy=True)
            case "fail" | "fail-after":
                error = _ERRORS[self.argument]
                again = type(error)(*error.args)
                if isinstance(error, TransactionAborted) and isinstance(again, TransactionAborted):
                    again.stale = error.stale
                return CallFault(error=again, after=self.kind == "fail-after")
        return None

    def __str__(self) -> str:
        return f"{self.kind} {self.argument}".strip()

    @classmethod
    def of(cls, text: str) -> Intervention:
        kind, _, argument = text.partition(" ")
        return cls(kind, argument)


class Occurrence(NamedTuple):
    """An action that happened: virtual time, place, action."""

    time: float
    place: str
    action: Intervention


def _failing(*errors: str) -> tuple[str, ...]:
    return tuple(f"fail {error}" for error in errors) + tuple(f"fail-after {error}" for error in errors)


#: to any process, at any place
_PROCESS: Final = ("kill", "kill", "halt 0.6", "halt 2", "halt 5", "halt 12", "cut 1", "cut 6")
#: what fails, where that is no call of a client
_OTHERS: Final = ("effect", "call", "database", "disk")
_SLOW: Final = ("slow 0.3", "slow 2", "slow 6", "lost")
#: what may happen to a call, by its name
DRAWN: Final[dict[str, tuple[str, ...]]] = {
    "fence": (*_PROCESS, *_SLOW, *_failing("unknown")),
    "begin": _PROCESS,
    "send": (*_PROCESS, *_SLOW, *_failing("aborted", "unknown")),
    "increment": (*_PROCESS, *_SLOW, *_failing("aborted", "unknown")),
    "offsets": (*_PROCESS, *_SLOW, "lost-after", *_failing("aborted", "stale", "unknown")),
    "commit": (*_PROCESS, *_SLOW, "lost-after", "copy", *_failing("unknown")),
    "abort": (*_PROCESS, *_SLOW, "lost-after", "copy", *_failing("unknown")),
    "bounds": (*_PROCESS, *_SLOW, "fail timeout"),
    "read": (*_PROCESS, *_SLOW, "fail timeout"),
    "full": (*_PROCESS, *_SLOW, "fail trouble"),
    "acknowledged": _PROCESS,
    "committed": (*_PROCESS, *_SLOW, "fail trouble"),
    "is_member": (*_PROCESS, *_SLOW, "fail trouble"),
    "ask_bounds": (*_PROCESS, *_SLOW, "fail trouble"),
    "lineages": (*_PROCESS, *_SLOW, "fail trouble"),
    "consume": (*_PROCESS, "slow 2"),
    "background": ("lost", "lost-after"),
    "world": ("stop 0", "stop 1", "kill 0", "kill 1", "halt 0", "halt 1", "join", "take", "release"),
    "effect": ("kill", "halt 5", "fail effect", "slow 2", "slow 6"),
    "call": ("kill", "halt 5", "fail call", "slow 2", "slow 6"),
    "answer": ("kill", "halt 5", "halt 12", "fail call", "twice", "twice", "slow 2", "slow 6"),
    "sink": ("kill", "halt 5", "slow 2", "fail database", "fail-after database"),
    "store": ("kill", "halt 5", "slow 2", "fail disk", "fail-after disk"),
    "disk": ("kill", "kill", "halt 5", "slow 2", "fail disk"),
}
#: how many times more often something happens at rare places
_OFTEN: Final = {"world": 10, "event": 20, "effect": 10, "call": 10, "answer": 10, "sink": 3, "store": 3, "disk": 3}
#: probability of an action at one place, of which a schedule has one
_RATES: Final = (0.002, 0.006, 0.02, 0.05)


def mix(seed: int, text: str, number: int = 0) -> int:
    """Return 32 bits that depend on all arguments."""
    mixed = (zlib.crc32(text.encode(), seed & 0xFFFFFFFF) ^ (number * 0x9E3779B1)) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return mixed ^ (mixed >> 16)


@dataclass
class Schedule:
    """Draws what happens from `seed`, or repeats `actions`, by place. `order` seeds the delays of all tasks."""

    seed: int = 0
    order: int = 0
    actions: Mapping[str, Intervention] | None = None
    #: nothing is drawn any more, so that the run can come to its end
    quiet: bool = False
    _rates: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rate = _RATES[mix(self.seed, "rate") % len(_RATES)]

    @classmethod
    def random(cls, seed: int) -> Schedule:
        return cls(seed, mix(seed, "order"))

    @classmethod
    def listed(cls, actions: Mapping[str, str], order: int = 0) -> Schedule:
        """Repeat a schedule that a timeline has printed.

        :raises UsageError: an action has no meaning.
        """
        parsed = {place: Intervention.of(text) for place, text in actions.items()}
        for place, action in parsed.items():
            if action.kind.startswith("fail") and action.argument not in (*_ERRORS, *_OTHERS):
                raise UsageError(f"{place}: no error {action.argument!r}. Next: use one of {', '.join(_ERRORS)}")
        return cls(order=order, actions=parsed)

    def action(self, place: str, number: int, kind: str, events: Sequence[str] = ()) -> Intervention | None:
        """Return what happens at the place when it is reached for this time (from 1).

        `events`: what may happen there, unless `DRAWN` has the kind.
        """
        if self.actions is not None:
            return self.actions.get(f"{place}#{number}")
        choices = DRAWN.get(kind, events)
        if self.quiet or not choices:
            return None
        drawn = mix(self.seed, place, number)
        if drawn * 2.0**-32 >= self._rate * _OFTEN.get(kind, 1):
            return None
        return Intervention.of(choices[mix(self.seed ^ 0x5F356495, place, number) % len(choices)])
