"""Detects that this member has missed an assignment of its group.

With the consumer protocol the coordinator sends a changed assignment once: in its answer to a heartbeat. If that answer
is lost with a connection, or arrives after `kafka.socket_timeout`, the client has to send a complete heartbeat, to
which the coordinator answers with the assignment (KIP-848). librdkafka 2.16 sends a short one. Then the group waits for
a revocation that this member does not know of, up to max.poll.interval.ms, or assigns to it a partition that it does
not read, without end. Only a member that joins again learns of its assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from statehold.health.group_check import GroupCheck
from statehold.ports import ConsumerGroup
from statehold.telemetry.log_events import Log

#: Seconds from a lost connection to the first reading.
_AFTER: Final = 1.0


class AssignmentDifference(NamedTuple):
    """The member, its partitions that it should not have, and those that it should have."""

    member: str
    revoked: AbstractSet[int]
    assigned: AbstractSet[int]


class MissedAssignment:
    """Compares the member's partitions with the group's, after each lost connection to the coordinator.

    The thread that polls the consumer uses it.
    """

    def __init__(self, check: GroupCheck[AssignmentDifference], log: Log) -> None:
        self._check, self._log = check, log
        #: Connections and answers of coordinators that the client has lost so far.
        self._lost = 0

    def saw(self, brokers: Mapping[str, Any]) -> None:
        """Take the brokers of the client's statistics; a connection lost since the last ones begins a comparison."""
        coordinators = [each for each in brokers.values() if each.get("source") == "logical"]
        lost = sum(each.get("disconnects", 0) + each.get("req_timeouts", 0) for each in coordinators)
        if lost != self._lost:
            self._lost = lost
            self._check.extend(_AFTER)

    def found(self, owned: AbstractSet[int], member: Callable[[], str]) -> bool:
        """Return True once if `member` has missed an assignment; `owned` are the partitions that it knows."""
        view = self._check.turn()
        return view is not None and self._compare(view, frozenset(owned), member())

    def _compare(self, view: ConsumerGroup, owned: AbstractSet[int], member: str) -> bool:
        own = next((each for each in view.members if each.id == member), None)
        if own is None or own.target is None:  # the next heartbeat reports that this member has been removed
            return False
        found = AssignmentDifference(member, owned - frozenset(own.target), frozenset(own.partitions) - owned)
        if not self._check.confirms(found if found.revoked or found.assigned else None):
            return False
        self._log.warning("assignment_missed", revoked=sorted(found.revoked), assigned=sorted(found.assigned))
        return True
