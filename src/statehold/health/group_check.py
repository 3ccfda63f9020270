"""Reads the consumer group on a thread of its own, because the thread that polls the consumer must not block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from statehold.common.threads import Background, BeginCall, CallInProgress
from statehold.errors import KafkaTrouble
from statehold.ports import Clock, ConsumerGroup
from statehold.telemetry.log_events import Log

D = TypeVar("D")

#: Seconds between two readings of a check, and until the same difference counts, because a rebalance or a heartbeat may
#: end it; group.consumer.heartbeat.interval.ms is 5 s by default.
_CHECK_EVERY: Final = 3.0
_CONFIRMED_AFTER: Final = 9.0
#: Readings in a row without a difference, after which a check ends.
_AGREEMENTS: Final = 2


class GroupReading:
    """At most one reading at a time. One thread uses it."""

    def __init__(
        self, read_group: Callable[[], ConsumerGroup], log: Log, clock: Clock, begin: BeginCall = Background
    ) -> None:
        self._read_group, self._log, self._clock, self._begin = read_group, log, clock, begin
        #: Time of the next reading.
        self.next = clock()
        self._call: CallInProgress | None = None
        self._view: ConsumerGroup | None = None

    def turn(self, every: float, *, wanted: bool) -> ConsumerGroup | None:
        """Return the group once a reading has ended; otherwise begin one if it is wanted and due.

        `every`: seconds from the begin of a reading to that of the next.
        """
        if self._call is not None:
            if self._call.ended():
                self._call = None
                return self._view
        elif wanted and self._clock() >= self.next:
            self.next, self._view = self._clock() + every, None
            self._call = self._begin(self._read, "group-check")
        return None

    def _read(self) -> None:
        try:
            self._view = self._read_group()
        except KafkaTrouble as error:
            self._log.debug("kafka_retry", doing="describe the group", cause=str(error))


class GroupCheck(Generic[D]):
    """Reads the group until two readings show no difference, or one difference has stayed for 9 s."""

    def __init__(
        self, read_group: Callable[[], ConsumerGroup], log: Log, clock: Clock, begin: BeginCall = Background
    ) -> None:
        self._clock = clock
        self._reading = GroupReading(read_group, log, clock, begin)
        #: Readings that must still agree; 0: nothing is to check.
        self._open = 0
        self._difference: D | None = None
        self._since = 0.0

    def begin(self) -> None:
        """Check the group from now on; what earlier readings have shown does not count."""
        self._difference = None
        self.extend(_CHECK_EVERY)

    def extend(self, after: float) -> None:
        """Check the group, `after` seconds from now at the earliest. A difference that was seen still counts."""
        self._open = _AGREEMENTS
        self._reading.next = max(self._reading.next, self._clock() + after)

    def turn(self) -> ConsumerGroup | None:
        """Return the group if a reading has ended; pass its difference to `confirms`."""
        return self._reading.turn(_CHECK_EVERY, wanted=self._open > 0)

    def confirms(self, difference: D | None, *, stable: bool = True) -> bool:
        """Return True, and end the check, if readings have shown this difference for 9 s."""
        if not stable or (difference is not None and difference != self._difference):
            self._open, self._difference, self._since = _AGREEMENTS, difference, self._clock()
        elif difference is None:
            self._open, self._difference = self._open - 1, None
        elif self._clock() - self._since >= _CONFIRMED_AFTER:
            self._open, self._difference = 0, None
            return True
        return False
