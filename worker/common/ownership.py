"""Ask the group whether this process still owns a partition, because a zombie's memory is stale (rule T8)."""

from __future__ import annotations

import math
from typing import Final

from statehold.errors import Fenced, KafkaTrouble
from statehold.ports import Cancelled, Membership, WorkerReport
from statehold.worker.common.context import Tools
from statehold.worker.common.signals import Signals

_ASK_EVERY: Final = 0.1
#: for this part of a session no other member can become the owner, because a silent member stays one for a session
_SURE: Final = 0.5


class Ownership:
    """Used by the partition's thread."""

    def __init__(self, tools: Tools, signals: Signals) -> None:
        self._tools, self._signals = tools, signals
        self._fences: list[float] = []
        self._alarmed = False
        #: monotonic time at which this process was certainly the owner
        self._known = -math.inf

    def assigned(self, since: float) -> None:
        """Note the assignment, which a poll that began at `since` returned. Before the thread starts."""
        self._known = since

    def doubt(self) -> None:
        """Discard the last confirmation, because a lost connection may be a zombie's first sign."""
        self._known = -math.inf

    def ascertain(self) -> None:
        """Confirm the ownership right before a fence, because the process may have been suspended since the assignment.

        Raises as `await_confirmation`.
        """
        while self._tools.clock() - self._known >= _SURE * self._tools.settings.group.session_seconds:
            self.await_confirmation()

    def await_confirmation(self) -> None:
        """Ask the group until it names this process as the owner.

        During a rebalance the group names no owner, so the worker asks for the length of a session. The time starts
        again with each request that gets no answer, because then nothing is known.

        :raises Fenced: the group names another owner. :raises Cancelled: the partition is revoked or lost meanwhile.
        """
        session = self._tools.settings.group.session_seconds
        until = self._tools.clock() + session
        while not (owner := self._asked()):
            if self._signals.leaving():
                raise Cancelled
            if owner is None:
                until = self._tools.clock() + session
            elif self._tools.clock() >= until:
                place = self._tools.place
                raise Fenced("fence: the group names another owner", topic=place.input, partition=place.partition)
            self._signals.any.wait(_ASK_EVERY)

    def may_fence_again(self) -> bool:
        """Return whether the group still names this process, and the fences are not too frequent."""
        settings, now = self._tools.settings.failure, self._tools.clock()
        self._fences = [at for at in self._fences if now - at < settings.fence_window]
        if len(self._fences) >= settings.fence_limit:
            self._alarm(len(self._fences), settings.fence_window)
            return False
        self._alarmed = False
        if owner := bool(self._asked()):
            self._fences.append(now)
        return owner

    def _alarm(self, fences: int, window: float) -> None:
        """Log once that another program keeps taking this partition's id although the group names this process."""
        if not self._alarmed:
            self._alarmed = True
            names, partition = self._tools.place.names, self._tools.place.partition
            self._tools.log.error(
                "fenced_too_often",
                fences=fences,
                window=window,
                transactional_id=names.transactional_id(partition),
                cause="another program uses this transactional.id, such as a second service with this name and input. "
                f"Retried after {window:.0f} s. Next: stop the other program and run `statehold retry {partition}`",
            )

    def _asked(self) -> bool | None:
        """Return whether this process is the owner; None: no answer."""
        place, began = self._tools.place, self._tools.clock()
        try:
            owner = self._tools.offsets.is_member(
                self._tools.membership().member_id, place.names.input, place.partition
            )
            self._known = began if owner else -math.inf
            return owner
        except KafkaTrouble as error:
            self._tools.log.warning("kafka_retry", doing="confirm the assignment", cause=str(error))
            return None


def await_newer_membership(tools: Tools, signals: Signals, rejected: Membership) -> None:
    """Let the manager fetch the membership again, because a rebalance may have moved the generation."""
    tools.report(WorkerReport(tools.place.partition, "stale"))
    until = tools.clock() + tools.settings.group.session_seconds
    while tools.membership().version == rejected.version and tools.clock() < until:
        if signals.pause(0.01):
            return
