"""Limit the dead letters: a flood of failures is treated as an outage, not as bad data."""

from __future__ import annotations

from collections import deque

from statehold.declared.policies import raised
from statehold.errors import TooManyFailures
from statehold.worker.common.context import Tools
from statehold.worker.handler.record_failure import HandlingFailed


class FailureLimits:
    """Counts failed records since the partition went live: too many of them are an outage, not bad data."""

    def __init__(self, tools: Tools) -> None:
        self._settings, self._place = tools.settings.failure, tools.place
        #: offsets of those that failed, the newest last
        self._failed: deque[int] = deque()
        self._row = 0

    def require(self, failure: HandlingFailed) -> None:
        """One more record is to become a dead letter.

        :raises TooManyFailures: it is one too many.
        """
        settings, offset = self._settings, failure.offset
        self._row = self._row + 1 if self._failed and offset == self._failed[-1] + 1 else 1
        while self._failed and self._failed[0] <= offset - settings.dead_window:
            self._failed.popleft()
        most = settings.dead_percent * settings.dead_window / 100
        if self._row > settings.dead_row:
            raise self._refused(failure, f"{self._row} records in a row have failed (failure.dead_row)")
        if len(self._failed) + 1 > most:
            said = f"{len(self._failed) + 1} of the newest {settings.dead_window} records have failed"
            raise self._refused(failure, f"{said} (failure.dead_percent)")
        self._failed.append(offset)

    def _refused(self, failure: HandlingFailed, why: str) -> TooManyFailures:
        place, cause = self._place, raised(failure.error)
        error = TooManyFailures(
            f"{why}, this one by {type(cause).__name__}: {cause}. That is an outage, not bad records: no more dead "
            f"letters are written and nothing is skipped; fix the cause, then `statehold retry {place.partition}`",
            topic=place.input,
            partition=place.partition,
            position=failure.offset,
        )
        error.__cause__ = cause
        return error
