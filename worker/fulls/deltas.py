"""Which commit records carry a delta, when a full snapshot is due, and what a restore would cost."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

import msgspec

from statehold.config.sections.processing import SnapshotSettings
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.estimate import Speeds, Workload
from statehold.snapshot.restore.restore import Restored
from statehold.snapshot.state import State
from statehold.table import Changes
from statehold.worker.common.context import Tools
from statehold.worker.transaction.participants import CommitDraft, Participant
from statehold.worker.transaction.state import TransactionState

#: so many keys in deltas are restored in a seventh of a second: no reason for a full snapshot
_FEW_ENTRIES: Final = 500_000
#: bytes of a key and its value in a full snapshot, where neither a snapshot nor a delta tells better
_ENTRY_BYTES: Final = 64
#: weight of the newest transaction in the pace of a replay
_WEIGHT: Final = 0.1
_keys: Final = attrgetter("keys")


@dataclass(slots=True)
class SnapshotPolicy:
    """Which commits carry a delta, and when the next full starts."""

    settings: SnapshotSettings
    last_delta: float
    last_full: float
    #: bytes of increments, and keys written in deltas, since the last full started
    bytes: int = 0
    entries: int = 0
    #: keys of the state
    keys: int = 0
    #: a full was asked for by a command or a tool
    asked: bool = False
    #: the next mark must carry a delta, because it refers to a full for the first time (rule S1)
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
        # The deltas cost a restore more than the state itself does.
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
    """What a restore would cost now. Used by the partition's thread; any thread may read the figures."""

    def __init__(self, speeds: Speeds, policy: SnapshotPolicy, record: CommitRecord) -> None:
        self._speeds, self._policy = speeds, policy
        self._n, self._seen_bytes = record.n, 0
        #: what the newest full snapshot that a commit record names would leave to do
        self.work = Workload(keys=record.keys)
        #: the part of it before the start of the full snapshot that is being written
        self._before = Workload()

    @property
    def seconds(self) -> float:
        """How long a restore would take now. Any thread."""
        return self._speeds.now.predict(self.work).total

    def inherit(self, work: Workload, bytes_seen: int) -> None:
        """After a restore that did `work`; the policy has counted `bytes_seen` of it."""
        self.work, self._seen_bytes = msgspec.structs.replace(work, gap=0), bytes_seen

    def committed(self, record: CommitRecord, delta: tuple[Changes, ...] | None) -> None:
        """A transaction has committed, and the policy has counted it."""
        work, size = self.work, self._policy.bytes
        positions = 0
        for topic, position in record.positions.items():
            if topic in record.topic_ids:
                positions += position
        self.work = msgspec.structs.replace(
            work,
            transactions=work.transactions + record.n - self._n,
            increment_bytes=work.increment_bytes + max(0, size - self._seen_bytes),
            entries=work.entries + sum(map(len, map(_keys, delta or ()))),
            gap=0 if delta is not None else work.gap + max(0, positions - record.start),
            keys=record.keys,
        )
        self._n, self._seen_bytes = record.n, size

    def full_started(self) -> None:
        """What was written up to now will not be read any more, if this full becomes the base."""
        self._before, self._seen_bytes = self.work, self._policy.bytes

    def full_referred(self, keys: int, size: int) -> None:
        """A commit record names the full snapshot that was started last, of so many keys and bytes."""
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
        """Of keys and values, as a full of now would hold them: what the newest full or the deltas tell of one key."""
        work = self.work
        if work.full_keys:
            each = work.full_bytes / work.full_keys
        else:
            each = work.increment_bytes / work.entries if work.entries else _ENTRY_BYTES
        return round(each * work.keys)

    def with_a_full(self) -> float:
        """Seconds of a restore, were there a full of now."""
        full = Workload(full_keys=self.work.keys, full_bytes=self.state_bytes, keys=self.work.keys)
        return self._speeds.now.predict(full).total


class Deltas(Participant):
    """Used by the partition's thread, during one live phase. Every feature that forces a delta comes before it."""

    def __init__(
        self, tools: Tools, state: State, transaction: TransactionState, policy: SnapshotPolicy, cost: RestoreCost
    ) -> None:
        self._tools, self._state, self._transaction = tools, state, transaction
        self._policy, self._cost = policy, cost
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
        changes, delta = draft.frozen.changes, draft.delta is not None
        if record.pace:
            self._tools.speeds.expect(record.pace)
        self._policy.committed(
            self._tools.clock(),
            delta=delta,
            # A commit record alone is nothing that a full snapshot would save: an idle partition takes no further ones.
            increment_bytes=self._transaction.kafka.increment_bytes if changes or draft.records else 0,
            entries=sum(map(len, map(_keys, changes))),
            keys=record.keys,
        )
        self._cost.committed(record, draft.delta)
