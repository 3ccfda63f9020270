"""Late records of windows and joins: counted with the commit, and logged if the handler has no on_late.

A release that removes the rows of a join one by one cannot repeat what this one has handled, so a partition that such
a release may take over gets a delta with each commit.
"""

from __future__ import annotations

import math
from typing import Final

from statehold.api.handler import Handler
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools
from statehold.worker.handler.event_time import WindowTime
from statehold.worker.transaction.participants import CommitDraft, Participant

#: seconds between two log events of a partition
_PAUSE: Final = 60.0


class LateRecords(Participant):
    """Used by the partition's thread, during one live phase."""

    def __init__(self, tools: Tools, event_time: WindowTime, kind: type[Handler[object]]) -> None:
        self._tools, self._windows = tools, event_time.windows
        self._joins = bool(event_time.joins)
        self._logs = kind.on_late is Handler.on_late
        #: late records by window: of the transaction whose commit is in flight, and since the last log event
        self._counts: dict[str, int] = {}
        self._unlogged: dict[str, int] = {}
        self._logged = -math.inf

    def opened(self, record: CommitRecord) -> None:
        self._take()  # those of a replay were counted when they were live

    def contribute(self, draft: CommitDraft) -> None:
        self._counts = self._take()
        draft.force_delta |= self._joins and draft.before.format < frame.SEGMENTS

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        for name, count in self._counts.items():
            self._tools.metrics.inc(metrics.LATE_RECORDS, count, name)
            self._unlogged[name] = self._unlogged.get(name, 0) + count
        now = self._tools.clock()
        if self._counts and self._logs and now - self._logged >= _PAUSE:
            self._logged, counts, self._unlogged = now, self._unlogged, {}
            self._tools.log.warning(
                "late_records",
                windows=counts,
                position=record.position(self._tools.place.input),
                cause="their time was over, so no window or join has them. Next: lengthen the grace, or define on_late",
            )
        self._counts = {}

    def rolled_back(self) -> None:
        self._take()

    def _take(self) -> dict[str, int]:
        """Return the counts since the last call."""
        taken = {table.name: table.late for table in self._windows if table.late}
        for table in self._windows:
            table.late = 0
        return taken
