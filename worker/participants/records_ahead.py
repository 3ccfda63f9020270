"""Records that are too far ahead of the clock: the commit record keeps the limit, a metric and an event count them."""

from __future__ import annotations

import math
from typing import Final

from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools
from statehold.worker.handler.time_limit import NO_RECORDS, AheadOfClock, LiveLimit
from statehold.worker.transaction.participants import CommitDraft, Participant

#: seconds between two log events of a partition
_PAUSE: Final = 60.0


class RecordsAhead(Participant):
    """Used by the partition's thread, during one live phase."""

    def __init__(self, tools: Tools, limit: LiveLimit) -> None:
        self._tools, self._limit = tools, limit
        #: of the transaction whose commit is in flight
        self._found = NO_RECORDS
        #: records since the last log event
        self._unlogged = 0
        self._logged = -math.inf

    def opened(self, record: CommitRecord) -> None:
        self._limit.take()
        self._limit.recorded = record.format >= frame.LIMITED

    def contribute(self, draft: CommitDraft) -> None:
        self._found = self._limit.take()
        draft.time_limit = self._found.limit

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        found, self._found = self._found, NO_RECORDS
        if found.records:
            self._tools.metrics.inc(metrics.RECORDS_AHEAD, found.records, "held" if found.limit else "advanced")
            self._unlogged += found.records
            self._log(found)
        self._limit.recorded = record.format >= frame.LIMITED

    def rolled_back(self) -> None:
        self._found = NO_RECORDS
        self._limit.take()

    def _log(self, found: AheadOfClock) -> None:
        now = self._tools.clock()
        if now - self._logged < _PAUSE:
            return
        self._logged, count, self._unlogged = now, self._unlogged, 0
        self._tools.log.warning(
            "record_ahead",
            input=found.topic,
            offset=found.offset,
            timestamp=found.timestamp,
            ahead=found.by(int(self._tools.wall() * 1000)),
            records=count,
            advanced=not found.limit,
            cause=self._cause(found),
        )

    def _cause(self, found: AheadOfClock) -> str:
        if found.limit:
            return "they keep their timestamps and did not advance the partition's time. Next: correct the producer"
        moved = "the partition's time has advanced, so windows have closed and later records may be late"
        if self._limit.mode == "warn":
            return f"{moved}. Next: set time.max_ahead, which holds such records back in production, too"
        return f"{moved}: time.max_ahead needs format {frame.LIMITED}. Next: run `statehold finish-upgrade`"
