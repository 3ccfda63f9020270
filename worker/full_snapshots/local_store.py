"""Writes committed deltas to the partition's files, after Kafka's commit (rule X1)."""

from __future__ import annotations

from collections.abc import Callable

from statehold.disk.disk_state import DiskState
from statehold.disk.start import label_of
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.restore import Restored
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools
from statehold.worker.full_snapshots.deltas import RestoreCost, SnapshotPolicy
from statehold.worker.transaction.participants import CommitDraft, Participant


class LocalStore(Participant):
    """Used by the partition's thread. Between two writes the tables keep in memory what the files do not have."""

    def __init__(
        self,
        tools: Tools,
        state: DiskState,
        policy: SnapshotPolicy,
        cost: RestoreCost,
        restored: Restored,
        fail: Callable[[BaseException], None],
    ) -> None:
        """`fail`: ends the partition's work with a cause, from any thread."""
        self._tools, self._state, self._policy, self._cost = tools, state, policy, cost
        self._full_time, self._newest = restored.full_time, restored.commit_record.full_snapshots[:1]
        self._is_proven = False
        self._fail = fail

    def opened(self, record: CommitRecord) -> None:
        if self._tools.scrub is not None:
            self._tools.scrub.join(self._state, self._fail, self._tools.metrics, self._tools.log)

    def close(self) -> None:
        if self._tools.scrub is not None:
            self._tools.scrub.leave(self._state)

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        """:raises LocalStoreFailed: the disk fails, and the files stay at an earlier commit record."""
        if draft.delta is None:
            return
        if record.full_snapshots[:1] != self._newest:
            self._full_time, self._newest = record.time / 1000, record.full_snapshots[:1]
        tools, state, policy, began = self._tools, self._state, self._policy, self._tools.clock()
        unsaved = policy.bytes, policy.entries
        label = label_of(tools.place, state, record, unsaved, work=self._cost.work, full_time=self._full_time)
        if not self._is_proven:  # a write proves the files
            state.flush(label)
        elif not state.settle(label, began):
            return
        tools.metrics.observe(metrics.LOCAL_STORE_SECONDS, tools.clock() - began)
        tools.metrics.set(metrics.LOCAL_STORE_BYTES, state.stored_bytes())
        tools.metrics.set(metrics.LOCAL_STORE_USED, state.store.used())
        tools.metrics.set(metrics.LOCAL_STORE_DECODED, state.decoded_bytes())
        tools.metrics.inc(metrics.LOCAL_STORE_READS, state.take_reads())
        if not self._is_proven:
            self._is_proven = True
            state.store.proven()
