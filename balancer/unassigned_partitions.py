"""Detects partitions that a stable group has assigned to no member.

A static member of the classic protocol that is killed after it has revoked partitions, and before it has joined again,
comes back in its former place without a rebalance. Those partitions have no owner until a member joins or leaves, so
the member that came back leaves and joins again.
"""

from __future__ import annotations

from statehold.config.client import static_id
from statehold.config.settings import Settings
from statehold.health.group_check import GroupCheck
from statehold.telemetry.log_events import Log


def leaves_unassigned(settings: Settings) -> bool:
    """Return whether a group with these settings may leave a partition without an owner."""
    group = settings.group
    return static_id(settings) != "" and group.protocol == "classic" and group.assignor != "range"


class UnassignedPartitions:
    """Used by the manager thread, after each assignment to this member."""

    def __init__(self, check: GroupCheck[frozenset[int]], partitions: int, log: Log) -> None:
        self._check, self._partitions, self._log = check, frozenset(range(partitions)), log

    def begin(self) -> None:
        """Check the group from now on, because it has just assigned partitions to this member."""
        self._check.begin()

    def found(self) -> bool:
        """Return True once if partitions have had no owner for 9 s. The manager calls this on every turn."""
        view = self._check.turn()
        if view is None:
            return False
        missing = self._partitions.difference(*(member.partitions for member in view.members))
        if not self._check.confirms(missing or None, stable=view.state == "stable"):
            return False
        self._log.warning("assignment_incomplete", partitions=sorted(missing))
        return True
