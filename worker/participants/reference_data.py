"""Reference data in a transaction: all its records see one version, which its commit record names."""

from __future__ import annotations

from statehold.snapshot.format.records import CommitRecord
from statehold.worker.handler.engine import Engine
from statehold.worker.transaction.participants import CommitDraft, Participant


class ReferenceData(Participant):
    """Used by the partition's thread, during one live phase."""

    def __init__(self, engine: Engine, record: CommitRecord) -> None:
        self._engine, self._committed = engine, record.reference

    def began(self) -> None:
        self._engine.renew()

    def contribute(self, draft: CommitDraft) -> None:
        references = self._engine.references.values()
        draft.reference = {reference.topic: reference.version for reference in references}
        # A replay sees one version, so a delta ends the transactions that saw another.
        draft.force_delta |= draft.reference != self._committed

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        self._committed = record.reference
