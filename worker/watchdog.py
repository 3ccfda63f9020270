"""Monitor the handler calls of one partition: end long batches early, report a slow call, abandon a stuck one.

It runs on the manager's thread. It never waits and never touches the state.
"""

from __future__ import annotations

from typing import Final

from statehold.errors import HandlerStuck
from statehold.ports import WorkerReport
from statehold.telemetry import metrics
from statehold.worker.common.activity import UserCall
from statehold.worker.common.context import Tools
from statehold.worker.common.signals import Signals

#: a batch that takes longer is cut, so that it can commit and the worker sees a signal
_BATCH: Final = 0.1


class Watchdog:
    """Belongs to the manager's thread; `failure` may be read by any."""

    def __init__(self, tools: Tools, signals: Signals) -> None:
        self._tools, self._signals, self._handling = tools, signals, tools.handling
        self._reported: tuple[UserCall | None, object] = (None, None)
        self._abandoned: UserCall | None = None
        self._ended = False
        self._failure: HandlerStuck | None = None

    @property
    def failure(self) -> HandlerStuck | None:
        """Why the partition has failed although its thread is still inside the handler."""
        return self._failure if self._failure is not None and self._handling.call is self._abandoned else None

    def attend(self, now: float) -> None:
        """`now` in monotonic seconds; many times a second."""
        handling, limits = self._handling, self._tools.settings.failure
        inside, on_one = handling.look(now)
        long = inside > max(_BATCH, self._tools.settings.commit.interval)
        if long or self._signals.leaving() or self._signals.failure is not None:
            handling.cut()
        if on_one >= limits.handler_slow:
            self._report_slow(on_one)
        if limits.handler_stuck != "off" and on_one >= limits.handler_stuck:
            self._abandon(on_one)
            if limits.stuck_exit != "off" and on_one >= limits.handler_stuck + limits.stuck_exit:
                self._end_the_process()

    def _report_slow(self, seconds: float) -> None:
        handling = self._handling
        now = (handling.call, handling.record)
        if now[0] is self._reported[0] and now[1] is self._reported[1]:
            return
        self._reported = now
        self._tools.metrics.inc(metrics.SLOW_RECORDS)
        self._tools.log.warning(
            "handler_slow", doing=handling.where(), seconds=round(seconds, 1), stack=handling.stack()
        )

    def _abandon(self, seconds: float) -> None:
        """Fail the partition. Its thread cannot be stopped, so its objects stay in memory; it gets no more batches."""
        handling, place, limits = self._handling, self._tools.place, self._tools.settings.failure
        if self._abandoned is handling.call:
            return
        self._abandoned = handling.call
        ends = (
            "" if limits.stuck_exit == "off" else f"; the process ends in {limits.stuck_exit:g} s unless the call ends"
        )
        error = self._failure = HandlerStuck(
            f"the handler has been in {handling.where()} for {seconds:.0f} s (failure.handler_stuck). Nothing of it is "
            f"committed. Next: fix the handler by the stack in log line handler_stuck and restart the process{ends}",
            topic=place.input,
            partition=place.partition,
            position=handling.record.offset if handling.record is not None else -1,
        )
        self._tools.metrics.inc(metrics.FAILURES, 1, type(error).__name__)
        self._tools.log.error("handler_stuck", cause=str(error), stack=handling.stack())
        self._signals.fail(error)  # in case the call returns after all
        if self._tools.deaths is not None:
            self._tools.deaths.excuse()
        self._tools.report(WorkerReport(place.partition, "failed", cause=error))

    def _end_the_process(self) -> None:
        if not self._ended:
            self._ended = True
            self._tools.report(WorkerReport(self._tools.place.partition, "stuck", cause=self._failure))
