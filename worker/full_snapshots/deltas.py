"""Decide which commits carry a delta and when a full snapshot is due; predict the cost of a restore."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

import msgspec

from statehold.config.sections.processing import SnapshotSettings
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.estimate import Speeds, Workload
from statehold.snapshot.restore.restore import Restored
from statehold.state.partition_table import Changes
from statehold.worker.common.context import Tools
from statehold.worker.transaction.participants import CommitDraft, Participant
from statehold.worker.transaction.state import TransactionState

#: keys in deltas that are no reason for a full snapshot, because a restore reads them in a seventh of a second
_FEW_ENTRIES: Final = 500_000
#: assumed bytes of a key and its value, without a snapshot or a delta to measure
_ENTRY_BYTES: Final = 64
#: weight of the newest transaction in the pace of a replay
_WEIGHT: Final = 0.1
_keys: Final = attrgetter("keys")


@dataclass(slots=True)
class SnapshotPolicy:
    """Decides which commits carry a delta, and when the next full snapshot starts."""

    settings: SnapshotSettings
    last_delta: float
    last_full: float
    #: bytes of changelog, and keys written in deltas, since the last full snapshot started
    bytes: int = 0
    entries: int = 0
    #: keys of the state
    keys: int = 0
    #: a command or a tool asked for a full snapshot
    asked: bool = False
    #: the next commit record must carry a delta, because it refers to a full snapshot for the first time (rule S1)
    force_delta: bool = False

    @property
    def mode(self) -> Literal["commit", "interval", "off"]:
        interval = self.settings.delta_interval
        return interval if isinstance(interval, str) else "interval"

    def delta_due(self, now: float) -> bool:
        interval = self.settings.delta_interval
        if isinstance(interval, str):
            return interval == "commit"
        return self.force_delta or now - self.last_delta >= interval

    def full_due(self, now: float) -> bool:
        if self.asked:
            return True
        if not self.settings.periodic_full or self.bytes == 0:
            return False
        if self.bytes >= self.settings.full_bytes or now - self.last_full >= self.settings.full_interval:
            return True
        # Restoring the deltas costs more than restoring the state itself.
        growth = self.settings.full_growth
        outgrown = growth > 0 and self.entries >= max(_FEW_ENTRIES, growth * self.keys)
        return outgrown and self.settings.delta_interval != "off"

    def committed(self, now: float, *, delta: bool, increment_bytes: int, entries: int, keys: int) -> None:
        self.bytes += increment_bytes
        self.entries, self.keys = self.entries + entries, keys
        if delta:
            self.last_delta, self.force_delta = now, False

    def full_started(self, now: float) -> None:
        self.last_full, self.bytes, self.entries, self.asked = now, 0, 0, False


class RestoreCost:
    """The predicted cost of a restore. Used by the partition's thread; any thread may read the figures."""

    def __init__(self, speeds: Speeds, policy: SnapshotPolicy, restored: Restored) -> None:
        """Start with the work of the restore, whose changelog bytes the policy has counted."""
        self._speeds, self._policy = speeds, policy
        self._n, self._seen_bytes = restored.commit_record.n, restored.unsaved_bytes
        #: work of a restore from the newest full snapshot that a commit record names
        self.work = msgspec.structs.replace(restored.work, gap=0)
        #: the part of it before the start of the full snapshot that is being written
        self._before = Workload()

    @property
    def seconds(self) -> float:
        """Return the predicted seconds of a restore now. Any thread."""
        return self._speeds.now.predict(self.work).total

    def committed(self, record: CommitRecord, position: int, delta: tuple[Changes, ...] | None) -> None:
        """Add a committed transaction that the policy has counted, up to this position."""
        work, size = self.work, self._policy.bytes
        self.work = msgspec.structs.replace(
            work,
            transactions=work.transactions + record.n - self._n,
            increment_bytes=work.increment_bytes + max(0, size - self._seen_bytes),
            entries=work.entries + sum(map(len, map(_keys, delta or ()))),
            gap=0 if delta is not None else work.gap + max(0, position - record.start),
            keys=record.keys,
        )
        self._n, self._seen_bytes = record.n, size

    def full_started(self) -> None:
        """Note the work so far, because a restore skips it if this full snapshot becomes the base."""
        self._before, self._seen_bytes = self.work, self._policy.bytes

    def full_referred(self, keys: int, size: int) -> None:
        """Make the last started full snapshot, of `keys` and `size` bytes, the base: a commit record names it."""
        work, before = self.work, self._before
        self.work = Workload(
            full_keys=keys,
            full_bytes=size,
            transactions=max(0, work.transactions - before.transactions),
            entries=max(0, work.entries - before.entries),
            increment_bytes=max(0, work.increment_bytes - before.increment_bytes),
            keys=work.keys,
            gap=work.gap,
        )

    @property
    def state_bytes(self) -> int:
        """Return the estimated bytes of a full snapshot now, from the average of the newest one or of the deltas."""
        work = self.work
        if work.full_keys:
            each = work.full_bytes / work.full_keys
        else:
            each = work.increment_bytes / work.entries if work.entries else _ENTRY_BYTES
        return round(each * work.keys)

    def with_a_full(self) -> float:
        """Return the predicted seconds of a restore if a full snapshot were taken now."""
        full = Workload(full_keys=self.work.keys, full_bytes=self.state_bytes, keys=self.work.keys)
        return self._speeds.now.predict(full).total


class SnapshotTurns(Participant):
    """Gives full snapshots a turn at each commit at which one is due, asked for or in progress, and at no other."""

    #: something is in progress, or to be named in the next commit record
    busy = True
    _tools: Tools
    _policy: SnapshotPolicy

    def contribute(self, draft: CommitDraft) -> None:
        if self.busy:
            self.name(draft)

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        if self.busy or record.take > 0 or self._policy.full_due(self._tools.clock()):
            self.boundary(record)

    def name(self, draft: CommitDraft) -> None:
        """Name the full snapshots to keep, newest first. Without a call the record keeps those of the one before."""
        raise NotImplementedError

    def boundary(self, record: CommitRecord) -> None:
        """Do the next piece of work; the state is exactly that of `record`."""
        raise NotImplementedError


class Deltas(Participant):
    """Used by the partition's thread, during one live phase. Every feature that forces a delta precedes it."""

    def __init__(
        self, tools: Tools, transaction: TransactionState, policy: SnapshotPolicy, cost: RestoreCost, restored: Restored
    ) -> None:
        """The policy begins with the figures of the restore that a full snapshot would save the next one."""
        self._tools, self._transaction, self._policy, self._cost = tools, transaction, policy, cost
        self._state, self._pace = restored.state, restored.commit_record.pace
        policy.bytes, policy.entries, policy.keys = restored.unsaved_bytes, restored.unsaved_keys, self._state.keys
        #: with the first delta: the first transaction whose changes are all in deltas
        self._reach: int | None = None
        # The next delta holds the gap; no delta holds the changes between the last delta and the full snapshot.
        if restored.full is not None and restored.commit_record.last_delta < restored.full.first:
            self._reach = restored.full.first

    def contribute(self, draft: CommitDraft) -> None:
        policy = self._policy
        policy.force_delta |= draft.force_delta
        # If every commit carries a delta nothing is ever replayed, so the pace has no meaning.
        if draft.records and policy.settings.delta_interval != "commit":
            newest = draft.seconds / draft.records * 1e9
            self._pace = round(newest if self._pace == 0 else self._pace + _WEIGHT * (newest - self._pace))
        draft.pace = self._pace
        if policy.delta_due(self._tools.clock()):
            draft.delta, draft.reach = self._state.delta(draft.frozen), self._reach

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        changes, delta = draft.frozen.changes, draft.delta is not None
        if record.pace:
            self._tools.speeds.expect(record.pace)
        self._policy.committed(
            self._tools.clock(),
            delta=delta,
            # A commit record alone does not count, because an idle partition must not take further full snapshots.
            increment_bytes=self._transaction.kafka.increment_bytes if changes or draft.records else 0,
            entries=sum(map(len, map(_keys, changes))),
            keys=record.keys,
        )
        self._cost.committed(record, draft.position, draft.delta)
