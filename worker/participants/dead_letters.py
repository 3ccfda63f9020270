"""Dead letters in a transaction: force a delta, and count them after the commit."""

from __future__ import annotations

from statehold.snapshot.format.records import CommitRecord
from statehold.telemetry import metrics
from statehold.telemetry.registry import PartitionMetrics
from statehold.worker.handler.dead_letters import DeadLetterBook
from statehold.worker.transaction.participants import CommitDraft, Participant


class DeadLetters(Participant):
    """Used by the partition's thread, during one live phase."""

    def __init__(self, dead_letters: DeadLetterBook, meters: PartitionMetrics) -> None:
        self._dead_letters, self._metrics = dead_letters, meters
        #: counts of the transaction whose commit is in flight
        self._counts: dict[str, int] = {}

    def contribute(self, draft: CommitDraft) -> None:
        draft.force_delta |= self._dead_letters.decided  # because no replay may decide again
        self._counts = self._dead_letters.close()

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        self._dead_letters.passed(record.positions)
        for what, count in self._counts.items():
            self._metrics.inc(metrics.FAILED_RECORDS, count, what)
