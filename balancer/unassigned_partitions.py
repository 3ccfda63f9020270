"""Detects partitions that a stable group has assigned to no member.

A static member of the classic protocol that is killed after it has revoked partitions, and before it has joined again,
comes back in its former place without a rebalance. Those partitions have no owner until a member joins or leaves, so
the member that came back leaves and joins again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from statehold.common.threads import Background, BeginCall, CallInProgress
from statehold.config.client import static_id
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble
from statehold.ports import Clock, ConsumerGroup
from statehold.telemetry.log_events import Log

#: Seconds between two readings of the group, and until the same partitions count, because a rebalance may follow.
_READ_EVERY: Final = 3.0
_CONFIRMED_AFTER: Final = 9.0
#: Readings in a row that must find every partition assigned before the check ends.
_COMPLETE: Final = 2


def leaves_unassigned(settings: Settings) -> bool:
    """Return whether a group with these settings may leave a partition without an owner."""
    group = settings.group
    return static_id(settings) != "" and group.protocol == "classic" and group.assignor != "range"


class UnassignedPartitions:
    """Used by the manager thread. A background thread reads the group, after each assignment to this member."""

    def __init__(
        self,
        read_group: Callable[[], ConsumerGroup],
        partitions: int,
        log: Log,
        clock: Clock,
        begin: BeginCall = Background,
    ) -> None:
        self._read_group, self._partitions = read_group, frozenset(range(partitions))
        self._log, self._clock, self._begin = log, clock, begin
        #: Readings that must still find every partition assigned; 0: nothing is to check.
        self._open = 0
        self._next = self._since = 0.0
        self._missing: frozenset[int] = frozenset()
        self._reading: CallInProgress | None = None
        self._view: ConsumerGroup | None = None

    def begin(self) -> None:
        """Check the group from now on, because it has just assigned partitions to this member."""
        self._open, self._missing = _COMPLETE, frozenset()
        self._next = self._clock() + _READ_EVERY

    def found(self) -> bool:
        """Return True once if partitions have had no owner for 9 s. The manager calls this on every turn."""
        if self._reading is not None:
            if not self._reading.ended():
                return False
            self._reading = None
            return self._view is not None and self._compare(self._view)
        if self._open and self._clock() >= self._next:
            self._next, self._view = self._clock() + _READ_EVERY, None
            self._reading = self._begin(self._read, "assignment-check")
        return False

    def _read(self) -> None:
        try:
            self._view = self._read_group()
        except KafkaTrouble as error:
            self._log.debug("kafka_retry", doing="describe the group", cause=str(error))

    def _compare(self, view: ConsumerGroup) -> bool:
        owned = [partition for member in view.members for partition in member.partitions]
        missing = self._partitions.difference(owned)
        if view.state != "stable" or (missing and missing != self._missing):
            self._open, self._missing, self._since = _COMPLETE, missing, self._clock()
        elif not missing:
            self._open, self._missing = self._open - 1, missing
        elif self._clock() - self._since >= _CONFIRMED_AFTER:
            self._log.warning("assignment_incomplete", partitions=sorted(missing))
            self._open, self._missing = 0, frozenset()
            return True
        return False
