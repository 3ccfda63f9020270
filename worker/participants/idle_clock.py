"""The clock of an idle partition: a commit record pins each tick in the order of the input, like a user's command.

Records advance event time. Without records the worker advances it, and a replay must repeat that. So the tick is an
entry of `CommitRecord.pinned`, with the worker's time as its timestamp (docs/design.md, "Pinned commands and ticks").
The worker writes a tick only if it makes a timer due, or closes a window.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from statehold.api.record import Message
from statehold.messages.command import TICK, header
from statehold.messages.pinned_command import Pinned, PinnedMessage
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.context import Tools
from statehold.worker.common.reporting import PinningFormat
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.event_time import EventTime
from statehold.worker.transaction.participants import CommitDraft, Participant, SideWork

_HEADERS: Final = (header(TICK),)
#: calls in a transaction that is a tick
_SLICES: Final = 10


class IdleClock(Participant):
    """Used by the partition's thread, during one live phase; `blocked`: records wait for side effects."""

    def __init__(self, tools: Tools, engine: Engine, event_time: EventTime, blocked: Callable[[], bool]) -> None:
        self._tools, self._engine, self._event_time, self._blocked = tools, engine, event_time, blocked
        self._idle = tools.settings.timers.idle
        waits = partial(tools.log.warning, "timers_wait")
        self._format = PinningFormat(waits, "a timer is due on an idle partition, and ticks")
        #: time of the last records, or of going live (monotonic seconds)
        self._since = tools.clock()

    def wants_commit(self, record: CommitRecord, now: float) -> bool:
        """Return whether a timer or a window is due by the clock and the partition has been idle long enough."""
        if self._blocked():  # records wait, so the partition is not idle
            self._since = now
            return False
        return self._due(record)

    def side_inputs(self, work: SideWork) -> None:
        if not work.idle or (work.alone and work.done.pinned) or not self._due(work.before):
            return
        now = self._now()
        # The time is also the offset, so that the tick's effects and timers have unique keys.
        tick = Pinned(now, now, None, None, _HEADERS)
        message = PinnedMessage(self._tools.place.names.control, self._tools.place.partition, tick)
        done = self._advance(message)
        work.send(message)
        if not done:
            work.closed = True  # the next tick hands over the rest; `SlicedTime` pins what this one did
            return
        work.done = work.done._replace(pinned=(*work.done.pinned, tick))

    def _advance(self, tick: Message) -> bool:
        """Hand over what the tick makes due; return whether that is all of it."""
        slices, until = self._event_time.slices, self._tools.clock() + self._tools.settings.commit.interval
        for _ in range(_SLICES):
            slices.begin()
            try:
                self._engine.obey(tick)
            finally:
                slices.end()
            if not slices.inside or self._tools.clock() >= until:
                break
        return not slices.inside

    def contribute(self, draft: CommitDraft) -> None:
        if draft.records:
            self._since = self._tools.clock()

    def _due(self, record: CommitRecord) -> bool:
        if self._event_time.due > self._now() or record.paused is not None or self._event_time.slices.before_record:
            return False
        is_idle = self._tools.clock() - self._since >= self._idle
        return is_idle and self._event_time.has_due(self._now()) and self._format.allows(record)

    def _now(self) -> int:
        return int(self._tools.wall() * 1000)
