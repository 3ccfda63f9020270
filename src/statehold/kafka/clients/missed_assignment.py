"""Detects that this member has missed an assignment of its group.

With the consumer protocol the coordinator sends a changed assignment once: in its answer to a heartbeat. If that answer
is lost with a connection, or arrives after `kafka.socket_timeout`, the client has to send a complete heartbeat, to
which the coordinator answers with the assignment (KIP-848). librdkafka 2.16 sends a short one. Then the group waits for
a revocation that this member does not know of, up to max.poll.interval.ms, or assigns to it a partition that it does
not read, without end. Only a member that joins again learns of its assignment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from statehold.common.threads import Background, BeginCall, CallInProgress
from statehold.errors import KafkaTrouble
from statehold.ports import Clock, ConsumerGroup
from statehold.telemetry.log_events import Log

#: Seconds between two readings of the group, and until the same difference counts. A coordinator waits for a heartbeat
#: before this member can know of a change; group.consumer.heartbeat.interval.ms is 5 s by default.
_READ_EVERY: Final = 3.0
_CONFIRMED_AFTER: Final = 9.0
#: Readings in a row that must agree with this member.
_AGREEMENTS: Final = 2


class MissedAssignment:
    """Compares the member's partitions with the group's, after each lost connection to the coordinator.

    The thread that polls the consumer uses it. The group is read on a thread of its own.
    """

    def __init__(
        self,
        read_group: Callable[[], ConsumerGroup],
        log: Log,
        clock: Clock = time.monotonic,
        begin: BeginCall = Background,
    ) -> None:
        self._read_group, self._log, self._clock, self._begin = read_group, log, clock, begin
        #: Connections and answers of coordinators that the client has lost so far.
        self._lost = 0
        #: Readings that must still agree; 0: nothing is to check.
        self._open = 0
        self._next = 0.0
        self._reading: CallInProgress | None = None
        self._view: ConsumerGroup | None = None
        #: The member, its partitions that it should not have, and those that it should have; and since when.
        self._difference: tuple[str, AbstractSet[int], AbstractSet[int]] | None = None
        self._since = 0.0

    def saw(self, brokers: Mapping[str, Any]) -> None:
        """Take the brokers of the client's statistics; a connection lost since the last ones begins a comparison."""
        coordinators = [each for each in brokers.values() if each.get("source") == "logical"]
        lost = sum(each.get("disconnects", 0) + each.get("req_timeouts", 0) for each in coordinators)
        if lost != self._lost:
            self._lost, self._open = lost, _AGREEMENTS
            self._next = max(self._next, self._clock() + 1.0)

    def found(self, owned: AbstractSet[int], member: Callable[[], str]) -> bool:
        """Return True once if `member` has missed an assignment; `owned` are the partitions that it knows."""
        if self._reading is not None:
            if not self._reading.ended():
                return False
            self._reading = None
            return self._view is not None and self._compare(self._view, frozenset(owned), member())
        if self._open and self._clock() >= self._next:
            self._next, self._view = self._clock() + _READ_EVERY, None
            self._reading = self._begin(self._read, "assignment-check")
        return False

    def _compare(self, view: ConsumerGroup, owned: AbstractSet[int], member: str) -> bool:
        own = next((each for each in view.members if each.id == member), None)
        if own is None or own.target is None:  # the next heartbeat reports that this member has been removed
            return False
        revoked, assigned = owned - frozenset(own.target), frozenset(own.partitions) - owned
        difference = member, revoked, assigned
        if not revoked and not assigned:
            self._open, self._difference = self._open - 1, None
        elif self._difference != difference:
            self._open, self._difference, self._since = _AGREEMENTS, difference, self._clock()
        elif self._clock() - self._since >= _CONFIRMED_AFTER:
            self._log.warning("assignment_missed", revoked=sorted(revoked), assigned=sorted(assigned))
            self._open, self._difference = 0, None
            return True
        return False

    def _read(self) -> None:
        try:
            self._view = self._read_group()
        except KafkaTrouble as error:
            self._log.debug("kafka_retry", doing="describe the group", cause=str(error))
