"""The life of one partition as a table of legal edges: no thread, no clock, no I/O.

    ASSIGNED -> FENCING -> RESTORING -> REPLAYING -> LIVE -> DRAINING -> CLOSED
                   |           |            |         |         |
                   +-----------+------------+---------+---------+--> ABORTING -> CLOSED     lost, or revoked before live
                   +-----------+------------+---------+--> FAILED -> FENCING                retry
                                                      +--> FENCING                          the producer is replaced

LIVE is reachable through FENCING, RESTORING and REPLAYING only: fence first, then read the commit record (rule A1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from statehold.errors import UsageError


class Phase(Enum):
    ASSIGNED = "assigned"
    FENCING = "fencing"
    RESTORING = "restoring"
    REPLAYING = "replaying"
    LIVE = "live"
    DRAINING = "draining"
    ABORTING = "aborting"
    FAILED = "failed"
    CLOSED = "closed"


class Event(Enum):
    START = auto()
    FENCED = auto()
    RESTORED = auto()
    REPLAYED = auto()
    #: the group revokes the partition, or the process stops: processed records may still be committed
    REVOKED = auto()
    #: the group has assigned the partition to another member: nothing may be committed
    LOST = auto()
    #: the handler, the data or Kafka failed
    FAILED = auto()
    #: a commit's outcome is unknown, or the producer is suspect: fence again and read the last commit record
    PRODUCER_DROPPED = auto()
    RETRY = auto()
    DRAINED = auto()
    ABORTED = auto()


_P, _E = Phase, Event
_OPENING: Final = {_E.REVOKED: _P.ABORTING, _E.LOST: _P.ABORTING, _E.FAILED: _P.FAILED}

EDGES: Final[dict[Phase, dict[Event, Phase]]] = {
    _P.ASSIGNED: {_E.START: _P.FENCING, _E.REVOKED: _P.CLOSED, _E.LOST: _P.CLOSED},
    _P.FENCING: {_E.FENCED: _P.RESTORING, **_OPENING},
    _P.RESTORING: {_E.RESTORED: _P.REPLAYING, **_OPENING},
    _P.REPLAYING: {_E.REPLAYED: _P.LIVE, **_OPENING},
    _P.LIVE: {
        _E.REVOKED: _P.DRAINING,
        _E.LOST: _P.ABORTING,
        _E.FAILED: _P.FAILED,
        _E.PRODUCER_DROPPED: _P.FENCING,
    },
    _P.DRAINING: {
        _E.DRAINED: _P.CLOSED,
        _E.LOST: _P.ABORTING,
        _E.FAILED: _P.ABORTING,
        _E.PRODUCER_DROPPED: _P.ABORTING,
    },
    _P.ABORTING: {_E.ABORTED: _P.CLOSED},
    _P.FAILED: {_E.RETRY: _P.FENCING, _E.REVOKED: _P.CLOSED, _E.LOST: _P.CLOSED},
    _P.CLOSED: {},
}


class IllegalEvent(UsageError):
    """An event that the current phase does not allow; the lifecycle is unchanged."""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The phase of a partition, and its cause."""

    phase: Phase = Phase.ASSIGNED
    cause: BaseException | None = None

    def after(self, event: Event, cause: BaseException | None = None) -> Lifecycle:
        """Return the lifecycle after `event`. A failure keeps its cause until the retry.

        :raises IllegalEvent: when the phase has no such edge.
        """
        target = EDGES[self.phase].get(event)
        if target is None:
            raise IllegalEvent(f"{event.name} is not possible while {self.phase.value}")
        return replace(self, phase=target, cause=None if event is Event.RETRY else (cause or self.cause))
