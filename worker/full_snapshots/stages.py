"""The stages of a full snapshot that a worker takes, as a table of legal edges: no thread, no clock, no I/O.

    Idle -> Searching -> Asking -> Bounded -> Writing -> Checking -> Referable -> Idle
                |                                                        ^
                +--------------- a compaction has made one --------------+

Each stage may go back to Idle, because an error or a stop abandons it. At a stop Idle leads to Writing: the bounds are
known then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from statehold.errors import UsageError
from statehold.ports import Bounds, FullSink
from statehold.snapshot.format.records import FullRef
from statehold.snapshot.full import FullWriter
from statehold.worker.full_snapshots.compaction_search import CompactionSearch

#: A request for the bounds of both topics. It waits up to that many seconds, and returns None without an answer.
BoundsRequest = Callable[[float], Bounds | None]


@dataclass(frozen=True, slots=True)
class Idle:
    """No full snapshot is in progress."""


@dataclass(frozen=True, slots=True)
class Searching:
    """Another thread looks for a full snapshot by a compaction, which makes an own one unnecessary."""

    search: CompactionSearch


@dataclass(frozen=True, slots=True)
class Asking:
    """The bounds of the topics are requested."""

    request: BoundsRequest


@dataclass(frozen=True, slots=True)
class Bounded:
    """The bounds are known. The snapshot starts at transaction `valid_from` or later (rule S5)."""

    bounds: Bounds
    valid_from: int


@dataclass(slots=True)
class Writing:
    """Chunks are written, in slices between batches."""

    writer: FullWriter
    sink: FullSink
    #: when it began, and the earliest time of the next slice, on the worker's clock
    began: float
    next_slice: float = 0.0


@dataclass(frozen=True, slots=True)
class Checking:
    """All is acknowledged. The bounds are requested again, because a truncation may have deleted the first chunk."""

    ref: FullRef
    request: BoundsRequest


@dataclass(frozen=True, slots=True)
class Referable:
    """The snapshot is complete since `since`, and no commit record refers to it yet."""

    ref: FullRef
    since: float


Stage = Idle | Searching | Asking | Bounded | Writing | Checking | Referable

EDGES: Final[dict[type[Stage], frozenset[type[Stage]]]] = {
    Idle: frozenset({Searching, Writing}),
    Searching: frozenset({Idle, Asking, Referable}),
    Asking: frozenset({Idle, Bounded}),
    Bounded: frozenset({Idle, Writing}),
    Writing: frozenset({Idle, Checking}),
    Checking: frozenset({Idle, Referable}),
    Referable: frozenset({Idle}),
}


def require_edge(stage: Stage, following: Stage) -> None:
    """:raises UsageError: `stage` does not lead to `following`."""
    if type(following) not in EDGES[type(stage)]:
        raise UsageError(f"a full snapshot cannot go from {type(stage).__name__} to {type(following).__name__}")
