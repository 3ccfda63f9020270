"""Trace each commit, from the draft of its commit record to its outcome."""

from __future__ import annotations

from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.tracing import Tracing
from statehold.worker.transaction.participants import CommitDraft, Participant


class CommitSpans(Participant):
    """Used by the partition's thread, during one live phase."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def contribute(self, draft: CommitDraft) -> None:
        self._tracing.commit_began(draft.before.n + 1, draft.records, draft.position)

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        self._tracing.commit_ended(committed=True)

    def rolled_back(self) -> None:
        self._tracing.commit_ended(committed=False)

    def close(self) -> None:
        self._tracing.commit_ended(committed=False)
