"""Monitor the thread of one partition from the manager's: end long batches early, report a handler that is slow,
abandon one that is stuck. It never waits and never touches the state.
"""

from __future__ import annotations

from typing import Final

from statehold.errors import HandlerStuck
from statehold.telemetry import metrics
from statehold.worker.common.activity import UserCall
from statehold.worker.common.context import Report, Tools
from statehold.worker.common.signals import Signals

#: a batch that takes longer is cut, so that what it has done can commit and a signal is heard
_BATCH: Final = 0.1


class Watchdog:
    """Belongs to the manager's thread; `failure` may be read by any."""

    def __init__(self, tools: Tools, signals: Signals) -> None:
        self._tools, self._signals, self._handling = tools, signals, tools.handling
        self._told: tuple[UserCall | None, object] = (None, None)
        self._given_up: UserCall | None = None
        self._ended = False
        self._failure: HandlerStuck | None = None

    @property
    def failure(self) -> HandlerStuck | None:
        """Why the partition has failed although its thread is still inside the handler."""
        return self._failure if self._failure is not None and self._handling.call is self._given_up else None

    def attend(self, now: float) -> None:
        """`now` in monotonic seconds; many times a second."""
        handling, limits = self._handling, self._tools.settings.failure
        inside, on_one = handling.look(now)
        long = inside > max(_BATCH, self._tools.settings.commit.interval)
        if long or self._signals.leaving() or self._signals.failure is not None:
            handling.cut()
        if on_one >= limits.handler_slow:
            self._tell_slow(on_one)
        if limits.handler_stuck != "off" and on_one >= limits.handler_stuck:
            self._give_up(on_one)
            if limits.stuck_exit != "off" and on_one >= limits.handler_stuck + limits.stuck_exit:
                self._end_the_process()

    def _tell_slow(self, seconds: float) -> None:
        handling = self._handling
        now = (handling.call, handling.record)
        if now[0] is self._told[0] and now[1] is self._told[1]:
            return
        self._told = now
        self._tools.metrics.inc(metrics.SLOW_RECORDS)
        self._tools.log.warning(
            "handler_slow", doing=handling.where(), seconds=round(seconds, 1), stack=handling.stack()
        )

    def _give_up(self, seconds: float) -> None:
        """The thread cannot be stopped, so what it holds stays in memory; the manager sends it nothing any more."""
        handling, place, limits = self._handling, self._tools.place, self._tools.settings.failure
        if self._given_up is handling.call:
            return
        self._given_up = handling.call
        ends = "" if limits.stuck_exit == "off" else f"; the process ends in {limits.stuck_exit:g} s if it stays there"
        error = self._failure = HandlerStuck(
            f"the handler has been in {handling.where()} for {seconds:.0f} s (failure.handler_stuck). Nothing of it is "
            f"committed. The log line handler_stuck has its stack; mend the handler and restart the process{ends}",
            topic=place.input,
            partition=place.partition,
            position=handling.record.offset if handling.record is not None else -1,
        )
        self._tools.metrics.inc(metrics.FAILURES, 1, type(error).__name__)
        self._tools.log.error("handler_stuck", cause=str(error), stack=handling.stack())
        self._signals.fail(error)  # for the moment at which it comes back after all
        self._tools.report(Report(place.partition, "failed", cause=error))

    def _end_the_process(self) -> None:
        if not self._ended:
            self._ended = True
            self._tools.report(Report(self._tools.place.partition, "stuck", cause=self._failure))
