"""Which commit records carry a delta, and what they say of a restore: its reach and the pace of a replay."""

from __future__ import annotations

from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.restore import Restored
from statehold.snapshot.state import State
from statehold.worker.common.context import Tools
from statehold.worker.fulls.snapshot_policy import SnapshotPolicy
from statehold.worker.transaction.participants import CommitDraft, Participant
from statehold.worker.transaction.state import TransactionState

#: of the newest transaction in what a record is said to take
_WEIGHT = 0.1


class Deltas(Participant):
    """Used by the partition's thread, during one live phase. Every feature that forces a delta comes before it."""

    def __init__(self, tools: Tools, state: State, transaction: TransactionState, policy: SnapshotPolicy) -> None:
        self._tools, self._state, self._transaction, self._policy = tools, state, transaction, policy
        self._pace = transaction.kafka.record.pace
        #: with the first delta: the transaction from which on the deltas hold every change
        self._reach: int | None = None

    def inherit(self, restored: Restored) -> None:
        """Take over what the restore found: what a full snapshot would save the next restore."""
        policy = self._policy
        policy.bytes, policy.entries, policy.keys = restored.unsaved_bytes, restored.unsaved_keys, restored.state.keys
        # What the gap wrote is in the next delta, what came between the last delta and the full snapshot in none.
        if restored.full is not None and restored.mark.last_delta < restored.full.first:
            self._reach = restored.full.first

    def contribute(self, draft: CommitDraft) -> None:
        policy = self._policy
        policy.force_delta |= draft.force_delta
        # Where every commit carries a delta nothing is ever replayed, and its pace means nothing.
        if draft.records and policy.settings.delta_interval != "commit":
            newest = draft.seconds / draft.records * 1e9
            self._pace = round(newest if self._pace == 0 else self._pace + _WEIGHT * (newest - self._pace))
        draft.pace = self._pace
        if policy.delta_due(self._tools.clock()):
            draft.delta, draft.reach = self._state.delta(draft.frozen), self._reach

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        changes = draft.frozen.changes
        self._tools.speeds.expect(record.pace)
        self._policy.committed(
            self._tools.clock(),
            delta=record.delta,
            # A commit record alone is nothing that a full snapshot would save: an idle partition takes no further ones.
            increment_bytes=self._transaction.kafka.increment_bytes if changes or draft.records else 0,
            entries=sum([len(change.keys) for change in changes]),
            keys=record.keys,
        )
