"""The clock of an idle partition: a tick is pinned to its place in the order by a mark, as a user's command is.

Timers are due by the time of the records. Where none come, somebody has to say how late it is, and a replay has to hear
the same: so the tick is an entry of `Mark.pinned`, with the worker's time as its timestamp (docs/design.md,
"Pinned commands and ticks"). It is written only when a timer is due by it.
"""

from __future__ import annotations

from typing import Final

from statehold.messages.command import TICK, header
from statehold.messages.pinned_command import Pinned
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import Mark
from statehold.worker.common.context import Tools
from statehold.worker.handler.engine import Engine

_HEADERS: Final = (header(TICK),)


class Ticking:
    """Used by the partition's thread, during one live phase."""

    def __init__(self, tools: Tools, engine: Engine) -> None:
        self._tools, self._moments = tools, engine.moments
        self._idle = tools.settings.timers.idle
        self._told = False
        #: when records came last, or the partition went live (monotonic seconds)
        self._since = tools.clock()

    def handled(self) -> None:
        """Records came: the partition is not idle."""
        self._since = self._tools.clock()

    def due(self, mark: Mark) -> bool:
        """A timer is due by the clock, and no record has come for long enough. `mark` is the last one."""
        if self._moments is None or self._moments.due > self._now() or mark.paused is not None:
            return False
        return self._tools.clock() - self._since >= self._idle and self._may_pin(mark)

    def pin(self) -> Pinned:
        """The tick of now. Its time is its offset, too: effects and timers of it have keys that are their own."""
        now = self._now()
        return Pinned(now, now, None, None, _HEADERS)

    def _now(self) -> int:
        return int(self._tools.wall() * 1000)

    def _may_pin(self, mark: Mark) -> bool:
        if mark.format >= frame.PINNING:
            return True
        if not self._told:
            self._told = True
            self._tools.log.warning(
                "timers_wait",
                cause=f"a timer is due and no record comes; the clock may move it from format {frame.PINNING} on: "
                f"`statehold finish-upgrade`",
            )
        return False
