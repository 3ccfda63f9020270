"""Whether this process still owns a partition, by a round trip begun now: memory is a zombie's memory (rule T8)."""

from __future__ import annotations

import math
from typing import Final

from statehold.errors import Fenced, KafkaTrouble
from statehold.ports import Cancelled, Membership
from statehold.worker.common.context import Report, Tools
from statehold.worker.common.signals import Signals

_ASK_EVERY: Final = 0.1
#: for this part of a session nobody else can have become the owner: a member that falls silent stays one for a session
_SURE: Final = 0.5


class Ownership:
    """Used by the partition's thread."""

    def __init__(self, tools: Tools, signals: Signals) -> None:
        self._tools, self._signals = tools, signals
        self._fences: list[float] = []
        self._alarmed = False
        #: monotonic time at which the group had us as the owner for certain
        self._known = -math.inf

    def assigned(self, since: float) -> None:
        """The group has told so in a poll that began at `since`. Before the thread starts."""
        self._known = since

    def doubt(self) -> None:
        """What was known counts no more: a lost connection may be a zombie's first sign."""
        self._known = -math.inf

    def ascertain(self) -> None:
        """Right before a fence: a process may have stood still since it was told, for as long as a takeover takes.

        Raises as `await_confirmation`.
        """
        while self._tools.clock() - self._known >= _SURE * self._tools.settings.group.session_seconds:
            self.await_confirmation()

    def await_confirmation(self) -> None:
        """Ask the group until it says that we are the owner.

        While a rebalance is under way the group names no owner, so it is asked for as long as a session; while nobody
        answers nothing is known, and it is asked on.

        :raises Fenced: the group names another owner. :raises Cancelled: the partition is taken from us meanwhile.
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
                raise Fenced("the group names another owner", topic=place.input, partition=place.partition)
            self._signals.any.wait(_ASK_EVERY)

    def may_fence_again(self) -> bool:
        """After a fence: the group says we are the owner, and it has not happened too often."""
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
        """Once: somebody takes this partition's id again and again, and the group says that it is ours."""
        if not self._alarmed:
            self._alarmed = True
            names, partition = self._tools.place.names, self._tools.place.partition
            self._tools.log.error(
                "fenced_too_often",
                fences=fences,
                window=window,
                transactional_id=names.transactional_id(partition),
                cause="another program uses this transactional.id: a second service with this name and input, or a "
                f"stranger. It is tried again when {window:.0f} s have passed, or by `statehold retry {partition}`",
            )

    def _asked(self) -> bool | None:
        """None: nobody answered."""
        place, began = self._tools.place, self._tools.clock()
        try:
            owner = self._tools.offsets.is_member(self._tools.membership().member_id, place.input, place.partition)
            self._known = began if owner else -math.inf
            return owner
        except KafkaTrouble as error:
            self._tools.log.warning("kafka_retry", doing="confirm the assignment", cause=str(error))
            return None


def await_newer_membership(tools: Tools, signals: Signals, refused: Membership) -> None:
    """A rebalance may have moved the generation: have the manager fetch it anew before the next commit."""
    tools.report(Report(tools.place.partition, "stale"))
    until = tools.clock() + tools.settings.group.session_seconds
    while tools.membership().version == refused.version and tools.clock() < until:
        if signals.pause(0.01):
            return
