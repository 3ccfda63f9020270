"""Slices of event time: the commit record pins how many rows a transaction has handed over before its next record.

Such a transaction carries a delta. So no restore repeats it, also not by a release that hands over all rows at once.
"""

from __future__ import annotations

from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.context import Tools
from statehold.worker.handler.time_slices import TimeSlices
from statehold.worker.transaction.participants import CommitDraft, Participant
from statehold.worker.transaction.plan import Mode
from statehold.worker.transaction.record_buffer import RecordBuffer

#: a database that is ahead needs the same end of its transaction, and a rejected row that of its record
_WHOLE = (Mode.BEHIND, Mode.BISECTING)


class SlicedTime(Participant):
    """Used by the partition's thread, during one live phase."""

    def __init__(self, tools: Tools, slices: TimeSlices, buffer: RecordBuffer) -> None:
        self._slices, self._buffer = slices, buffer
        #: without deltas a restore repeats every transaction
        self._off = tools.settings.snapshot.delta_interval == "off"

    def opened(self, record: CommitRecord) -> None:
        self._follow(record)

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        self._follow(record)

    def _follow(self, record: CommitRecord) -> None:
        pins = record.format >= frame.PINNING and not self._off
        self._slices.live = self._may_stop if pins else None

    def _may_stop(self) -> bool:
        return self._buffer.mode() not in _WHOLE

    def contribute(self, draft: CommitDraft) -> None:
        slices, side = self._slices, draft.side
        before_record = slices.before_record
        if (entry := slices.take()) is None:
            return
        draft.force_delta = True
        if before_record:  # side inputs came later
            draft.side = side._replace(pinned=(entry, *side.pinned))
        else:
            draft.side = side._replace(pinned=(*side.pinned, entry))
            slices.reached()

    def close(self) -> None:
        self._slices.live = None
