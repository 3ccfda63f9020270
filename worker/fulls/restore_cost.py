"""What a restore of this partition would cost now, kept up to date at commit boundaries (requirement of the budget)."""

from __future__ import annotations

import math

import msgspec

from statehold.config.sections.processing import SnapshotSettings
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.restore.estimate import Speeds, Workload, full_wanted
from statehold.snapshot.state import State
from statehold.telemetry.log_events import Event, Log
from statehold.worker.fulls.snapshot_policy import SnapshotPolicy

#: bytes of a key and its value in a full, where neither a full nor a delta tells better
_ENTRY_BYTES = 64
#: seconds between two looks for a compaction that was asked for
_LOOK_EVERY = 10.0
#: seconds between two warnings
_TELL_EVERY = 600.0


class RestoreCost:
    """Follows the marks and fulls of a live partition; used by its thread, figures may be read by any."""

    def __init__(self, speeds: Speeds, policy: SnapshotPolicy, state: State, mark: CommitRecord) -> None:
        self._speeds, self._policy, self._state = speeds, policy, state
        self._n, self._seen_bytes = mark.n, 0
        #: what the newest full that a mark refers to would leave to do
        self.work = Workload(keys=mark.keys)
        #: what of it lies before the start of the full that is being written
        self._before = Workload()

    @property
    def seconds(self) -> float:
        """How long a restore would take now. Any thread."""
        return self._speeds.now.predict(self.work).total

    def inherit(self, work: Workload, bytes_seen: int) -> None:
        """After a restore that did `work`; the policy has counted `bytes_seen` of it."""
        self.work, self._seen_bytes = msgspec.structs.replace(work, gap=0), bytes_seen

    def marked(self, mark: CommitRecord) -> None:
        """A transaction has committed."""
        if mark.n == self._n:
            return
        work, size = self.work, self._policy.bytes
        delta, positions = mark.delta, sum([at for topic, at in mark.positions.items() if topic in mark.topic_ids])
        self.work = msgspec.structs.replace(
            work,
            transactions=work.transactions + mark.n - self._n,
            increment_bytes=work.increment_bytes + max(0, size - self._seen_bytes),
            entries=work.entries + (self._state.delta_keys if delta else 0),
            gap=0 if delta else work.gap + max(0, positions - mark.start),
            keys=mark.keys,
        )
        self._n, self._seen_bytes = mark.n, size

    def full_started(self) -> None:
        """What was written up to now will not be read any more, if this full becomes the base."""
        self._before, self._seen_bytes = self.work, self._policy.bytes

    def full_referred(self, keys: int, size: int) -> None:
        """A mark refers to the full that was started last, and that holds so many keys and bytes."""
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


class RestoreBudget:
    """`snapshot.restore_budget`: asks for a full, or for a compaction where fulls are left to that."""

    def __init__(self, settings: SnapshotSettings, cost: RestoreCost, log: Log) -> None:
        self._seconds = 0.0 if settings.restore_budget == "off" else settings.restore_budget
        self._fulls, self._cost, self._log = settings.periodic_full, cost, log
        self._told = self._looked = -math.inf
        #: a compaction is wanted, and none was noticed yet
        self._wanting = False

    def asks(self, now: float) -> bool:
        """The budget would soon be exceeded, and a full by this worker helps."""
        budget, cost = self._seconds, self._cost
        self._wanting = False
        if budget <= 0:
            return False
        if not full_wanted(budget, cost.with_a_full(), cost.seconds):
            if cost.seconds > budget:
                self._tell(now, "restore_over_budget", "a full would not help: more partitions, or more budget")
            return False
        if not self._fulls:
            self._wanting = True
            self._tell(now, "compaction_wanted", "snapshot.periodic_full is off: run `statehold compact`")
        return self._fulls

    def looks(self, now: float) -> bool:
        """Whether to look for the full of the compaction that was asked for."""
        if not self._wanting or now - self._looked < _LOOK_EVERY:
            return False
        self._looked = now
        return True

    def _tell(self, now: float, event: Event, cause: str) -> None:
        if now - self._told >= _TELL_EVERY:
            self._told = now
            seconds = round(self._cost.seconds, 3)
            self._log.warning(event, restore_seconds=seconds, budget=self._seconds, cause=cause)
