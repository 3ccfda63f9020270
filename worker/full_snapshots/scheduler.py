"""Take full snapshots in parallel with live work, and truncate behind the oldest kept one (rules S1-S5, C3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple, TypeVar

from statehold.errors import KafkaTrouble
from statehold.ports import Bounds
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.full import FullDiffers, FullUnusable, FullWriter
from statehold.snapshot.restore.restore import Restored
from statehold.snapshot.shared_chunks import ChunkSharing, newest_of_families
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools
from statehold.worker.full_snapshots.compaction_search import CompactionSearch
from statehold.worker.full_snapshots.deltas import RestoreCost, SnapshotPolicy, SnapshotTurns
from statehold.worker.full_snapshots.local_copy import LocalCopy
from statehold.worker.full_snapshots.restore_budget import RestoreBudget
from statehold.worker.full_snapshots.stages import (
    Asking,
    Bounded,
    BoundsRequest,
    Checking,
    Idle,
    Referable,
    Searching,
    Stage,
    Writing,
    require_edge,
)
from statehold.worker.full_snapshots.truncation import Truncation
from statehold.worker.transaction.participants import CommitDraft

#: seconds until a finished full snapshot forces a transaction of a commit record alone (rule S3)
_FORCE_AFTER = 5.0
#: seconds until the next attempt, if a restore would not load what was written: the next one may end likewise
_UNUSABLE_AFTER = 300.0
#: share of a partition's time that a full snapshot may use
_SHARE = 0.5
#: seconds that a stop waits for verification; if it takes longer, the next owner's full snapshot truncates
_VERIFY_WAIT = 5.0

S = TypeVar("S", bound=Stage)


class FullFacts(NamedTuple):
    """Keys, bytes before compression, and the time of completion in seconds since 1970."""

    keys: int
    bytes: int
    time: float


class FullSnapshots(SnapshotTurns):
    """Used by the partition's thread at commit boundaries only; only `final` waits.

    `worker/full_snapshots/stages.py` has the stages of a full snapshot. It asks for the topics' bounds, sees the answer
    at one boundary and starts at a later one. So the changelog offset in its manifest always precedes the header of its
    first transaction (rule S5).
    """

    def __init__(
        self,
        tools: Tools,
        policy: SnapshotPolicy,
        cost: RestoreCost,
        restored: Restored,
        leaving: Callable[[], bool],
    ) -> None:
        """Take over from the restore: the snapshot that it loaded, without the unusable ones (rule C4)."""
        self._tools, self._policy, self._state = tools, policy, restored.state
        self._leaving = leaving
        self._settings = tools.settings.snapshot
        base = restored.full
        self.refs = restored.commit_record.full_snapshots
        if restored.unusable:
            self.refs = tuple(ref for ref in self.refs if ref not in restored.unusable)
        if base is not None and base not in self.refs:  # a compaction wrote it after the last commit record
            self.refs = tuple(sorted((base, *self.refs), key=attrgetter("first"), reverse=True))[: self._settings.keep]
        if restored.full_time:
            tools.metrics.set(metrics.FULL_TIME, restored.full_time)
        #: by the manifest's offset, of those that this owner wrote, found or loaded
        self.known: dict[int, FullFacts] = {}
        if base is not None:
            self.known[base.offset] = FullFacts(restored.work.full_keys, restored.work.full_bytes, restored.full_time)
        self.cost = cost
        seconds, periodic = self._settings.restore_budget, self._settings.periodic_full
        self._budget = None if seconds == "off" else RestoreBudget(seconds, cost, tools.log, periodic_full=periodic)
        #: copies new snapshots to the local disk; None without a local directory, and before the first snapshot
        self._local_copy: LocalCopy | None = None
        #: None unless full snapshots may share chunks
        self._sharing = ChunkSharing(self._state, self._settings.share) if self._settings.share else None
        #: keys and bytes of the newest full snapshot
        self._size = 0, 0
        self.stage: Stage = Idle()
        #: some work is in progress that a commit boundary would advance
        self.active = False
        #: None until enough snapshots are kept
        self.truncation: Truncation | None = None
        #: the snapshot that the restore has read completely
        self._sound = {base} if base is not None else set()
        #: earliest time to retry an abandoned full snapshot for a command
        self._again = -math.inf
        #: a command waits for a full snapshot
        self._awaited = False

    def ask(self) -> None:
        """Take a full snapshot from the next commit on."""
        self._policy.asked = True

    @property
    def unsaved(self) -> int:
        """Bytes of changelog since the newest full snapshot started."""
        return self._policy.bytes

    def wants_commit(self, record: CommitRecord, now: float) -> bool:
        """A full snapshot can start, or be referred to, with a commit record only."""
        match self.stage:
            case Bounded():
                return True
            case Referable(_, since):
                return self._awaited or now - since >= _FORCE_AFTER
            case _:
                return False

    def name(self, draft: CommitDraft) -> None:
        pending = (self.stage.ref,) if isinstance(self.stage, Referable) else ()
        refs = (*pending, *self.refs)
        if pending and self._sharing is not None:
            refs = newest_of_families(refs)
        draft.full_snapshots = refs[: self._settings.keep]

    def finish(self, record: CommitRecord, wait: float) -> bool:
        return self.pending

    def boundary(self, record: CommitRecord) -> None:
        self._awaited = record.take > 0
        try:
            if isinstance(self.stage, Referable) and self.stage.ref in record.full_snapshots:
                self._note_referred(record)
            if self.truncation is not None:
                self.refs = self.truncation.step(self.refs, record)
            self._advance(record)
        except (KafkaTrouble, FullUnusable) as error:
            self._give_up(error)
        self.busy = (
            not isinstance(self.stage, Idle)
            or self._budget is not None
            or self.refs[: self._settings.keep] != record.full_snapshots
            or (self.truncation is not None and self.truncation.busy)
        )

    def _advance(self, record: CommitRecord) -> None:
        match self.stage:
            case Writing() as writing:
                self._slice(writing, record)
            case Checking() as checking:
                self._check_written(checking)
            case Idle() | Searching() | Asking() | Bounded() as stage:
                now, budget = self._tools.clock(), self._budget
                # The settings, the budget or a command ask for a full snapshot; also a command of an earlier owner.
                due = self._policy.full_due(now) or (
                    now >= self._again and (record.take > 0 or (budget is not None and budget.asks(now)))
                )
                if isinstance(stage, Searching) or (
                    isinstance(stage, Idle) and (due or (budget is not None and budget.looks(now)))
                ):
                    self._search(record, due=due)
                elif due:
                    self._prepare(record)

    def _search(self, record: CommitRecord, *, due: bool) -> None:
        """Take what a compaction has made meanwhile; without it, prepare an own snapshot if one is due."""
        stage = self.stage
        if not isinstance(stage, Searching):
            stage = self._enter(Searching(CompactionSearch(self._tools, self.refs)))
        if not stage.search.ended():
            return
        found = stage.search.result(self.refs, record)
        if found is None:
            self._enter(Asking(self._ask()) if due else Idle())
            return
        now = self._tools.clock()
        self._size = found.manifest.loads, found.manifest.size
        self.known[found.ref.offset] = FullFacts(*self._size, found.manifest.time / 1000)
        self._policy.full_started(now)
        self.cost.full_started()
        self._policy.force_delta = True
        self._enter(Referable(found.ref, now))
        self._tools.log.info("full_noticed", full=found.offset, first=found.manifest.first, maker=found.manifest.maker)

    def between(self, record: CommitRecord) -> None:
        """Write another slice between two batches, if its share of time allows; the state is still that of `record`."""
        if not isinstance(self.stage, Writing):
            return
        try:
            self._slice(self.stage, record)
        except (KafkaTrouble, FullUnusable) as error:
            self._give_up(error)

    def _slice(self, writing: Writing, record: CommitRecord) -> None:
        began = self._tools.clock()
        if began < writing.next_slice:
            return
        self._write(writing, record.n, self._settings.slice_budget)
        now = self._tools.clock()
        writing.next_slice = now + (now - began) * (1 / _SHARE - 1)

    def final_bounds(self, deadline: float) -> Bounds | None:
        """Before a stop: return the bounds for `final` if the state has changed since the last full snapshot."""
        if not self._settings.on_stop or not self._policy.bytes or self.pending:
            return None
        self._abandon()
        self._policy.force_delta = True
        try:
            return self._ask()(deadline - self._tools.clock())
        except KafkaTrouble as error:
            self._give_up(error)
            return None

    def final(self, record: CommitRecord, bounds: Bounds, deadline: float) -> None:
        """Write a full snapshot at once; if it is complete in time, the next commit record refers to it."""
        self._abandon()
        self._start(record, bounds, lambda: self._tools.clock() >= deadline)
        try:
            while (left := deadline - self._tools.clock()) > 0:
                match self.stage:
                    case Writing() as writing:
                        self._write(writing, record.n, left, wait=min(left, 0.1))
                    case Checking() as checking:
                        self._check_written(checking, wait=min(left, 0.1))
                    case _:
                        return
        except (KafkaTrouble, FullUnusable) as error:
            self._give_up(error)

    @property
    def pending(self) -> bool:
        """A full snapshot is complete, and no commit record refers to it yet."""
        return isinstance(self.stage, Referable)

    def settle(self, record: CommitRecord, deadline: float) -> None:
        """Before a stop: truncate if that is due and verifying the snapshots does not take too long."""
        wait = min(deadline - self._tools.clock(), _VERIFY_WAIT)
        if self.truncation is not None:
            self.busy = True
            self.refs = self.truncation.step(self.refs, record, wait)

    def close(self) -> None:
        self._abandon()
        for each in (self.truncation, self._local_copy):
            if each is not None:
                each.close()

    def _prepare(self, record: CommitRecord) -> None:
        match self.stage:
            case Asking(request) if (bounds := request(0.0)) is not None:
                self._enter(Bounded(bounds, record.n + 1))
            case Bounded(bounds, valid_from) if record.n >= valid_from and self._may_start_at(record):
                writing = self._start(record, bounds, self._leaving)
                if self._policy.mode == "off":
                    # Without deltas a full snapshot is one state at one boundary: S = E.
                    self._write(writing, record.n, -1.0)

    def _may_start_at(self, record: CommitRecord) -> bool:
        """Return whether a full snapshot may start here; with deltas every N seconds it starts at a delta."""
        if self._policy.mode == "interval" and not record.delta:
            self._policy.force_delta = True
            return False
        return True

    def _start(self, record: CommitRecord, bounds: Bounds, ends: Callable[[], bool]) -> Writing:
        newest = self.refs[0].offset if self.refs else -1
        shared = self._sharing.begin(record, self.refs) if self._sharing is not None else None
        sink = self._tools.new_sink(ends)
        if (local := self._tools.local()) is not None:
            self._local_copy = self._local_copy or LocalCopy(local)
            sink = self._local_copy.through(sink, shared.ref if shared else None)
        writer = FullWriter(
            self._tools.place,
            self._state,
            record,
            bounds.increment_end,
            newest,
            sink,
            self._settings.chunk_bytes,
            shared,
        )
        writing = self._enter(Writing(writer, sink, self._tools.clock()))
        self._policy.full_started(writing.began)
        self.cost.full_started()
        self._tools.log.info("full_started", n=record.n, keys=self._state.keys)
        return writing

    def _write(self, writing: Writing, n: int, budget: float, *, wait: float = 0.0) -> None:
        """Write until `budget` seconds are used; the last acknowledgement ends this stage."""
        writer, began = writing.writer, self._tools.clock()
        ref = writer.advance(n, budget, self._tools.clock, wait)
        self._tools.metrics.observe(metrics.FULL_PAUSE_SECONDS, self._tools.clock() - began)
        if ref is None:
            return
        made = writer.manifest
        if self._sharing is not None:
            self._sharing.written(made, ref)
        self._size = made.rows or made.keys, made.size
        self.known[ref.offset] = FullFacts(*self._size, self._tools.wall())
        self._tools.metrics.inc(metrics.FULL_SNAPSHOTS, 1, "written")
        self._tools.metrics.inc(metrics.FULL_BYTES, writer.bytes)
        self._tools.metrics.set(metrics.FULL_TIME, self._tools.wall())
        self._tools.log.info(
            "full_written",
            full=ref.offset,
            first=ref.first,
            through=ref.through,
            keys=writer.keys,
            bytes=writer.bytes,
            shared=made.shared,
            seconds=round(self._tools.clock() - writing.began, 3),
        )
        self._enter(Checking(ref, self._ask()))

    def _check_written(self, checking: Checking, *, wait: float = 0.0) -> None:
        """Check that the first chunk still exists before a commit record refers to the snapshot (rule S4)."""
        bounds = checking.request(wait)
        if bounds is None:
            return
        ref = checking.ref
        if bounds.full_start > ref.low:
            self._give_up(
                f"truncated while it was written: its first chunk is {ref.low}, the log starts at {bounds.full_start}"
            )
            return
        # A deleted snapshot does not count as kept (rule C4).
        self.refs = tuple(kept for kept in self.refs if kept.low >= bounds.full_start)
        self._policy.force_delta = True
        self._enter(Referable(ref, self._tools.clock()))

    def _note_referred(self, record: CommitRecord) -> None:
        """Make the snapshot that `record` refers to for the first time the newest kept one."""
        self.refs = record.full_snapshots
        self._enter(Idle())
        kept = {ref.offset for ref in self.refs}
        self.known = {offset: facts for offset, facts in self.known.items() if offset in kept}
        self.cost.full_referred(*self._size)
        if self._local_copy is not None:
            self._local_copy.keep(record.full_snapshots[0])
        due = len(self.refs) >= self._settings.keep
        if due and self.truncation is None:
            self.truncation = Truncation(self._tools, self._sound)
        if self.truncation is not None:
            self.truncation.due = due

    def _ask(self) -> BoundsRequest:
        names = self._tools.place.names
        return self._tools.offsets.ask_bounds(names.changelog, names.snapshot, self._tools.place.partition)

    def _give_up(self, cause: Exception | str) -> None:
        self._abandon()
        if self._local_copy is not None:
            self._local_copy.drop()
        after = _UNUSABLE_AFTER if isinstance(cause, FullUnusable) else _FORCE_AFTER
        self._again = self._tools.clock() + after
        self._tools.metrics.inc(metrics.FULL_SNAPSHOTS, 1, "given_up")
        if isinstance(cause, FullDiffers):
            self._tools.metrics.inc(metrics.FULL_SNAPSHOTS, 1, "differs")
        self._tools.log.warning("full_abandoned", cause=str(cause))
        if isinstance(cause, FullDiffers):
            self._state.differs(str(cause))

    def _abandon(self) -> None:
        if not isinstance(self.stage, Idle):
            self._enter(Idle())

    def _enter(self, following: S) -> S:
        """Go to the next stage, and release what the present one holds. Return the next stage."""
        require_edge(self.stage, following)
        match self.stage:
            case Writing(sink=sink):
                sink.close()
            case Searching(search):
                search.close()
        if self._sharing is not None and isinstance(self.stage, Writing | Checking) and isinstance(following, Idle):
            self._sharing.abandoned()
        self.stage, self.active, self.busy = following, not isinstance(following, Idle | Referable), True
        return following
