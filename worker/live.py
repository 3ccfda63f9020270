"""The live loop of one partition: take, handle, commit; undo and redo when Kafka or the handler refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from holdfast.errors import (
    Fenced,
    HoldfastError,
    KafkaTrouble,
    Lost,
    MessageRefused,
    OutcomeUnknown,
    OutputRefused,
    ProducerFenced,
    TransactionAborted,
)
from holdfast.ports import Membership
from holdfast.record import Message
from holdfast.snapshot.records import Effect, Mark
from holdfast.snapshot.restore import Restored
from holdfast.snapshot.state import Frozen
from holdfast.worker.committer import Closing, Committer
from holdfast.worker.engine import Engine, Poisoned
from holdfast.worker.fulls import Fulls
from holdfast.worker.lifecycle import Event
from holdfast.worker.mailbox import Batch, Mailbox
from holdfast.worker.policy import CommitPolicy, SnapshotPolicy
from holdfast.worker.refusals import fenced, missing, refused
from holdfast.worker.signals import Signals
from holdfast.worker.tools import Report, Tools
from holdfast.worker.work import Work, offset

_IDLE = 0.5
_BUSY_IDLE = 0.01
#: how long a drain waits for effects; what is not done then is owed by the next owner
_EFFECTS_WAIT = 1.0
#: side effects owed at which no more records are taken: every mark names them all, and has to fit a message
_OWED = 10_000
#: aborts in a row, without a commit between, after which the partition fails
_ABORTS = 10


class ProducerDropped(Exception):
    """The producer must be replaced, and the last mark settles how its last transaction ended."""


class Live:
    """Used by the partition's thread. What it holds in memory survives a replaced producer (rule T4)."""

    def __init__(self, tools: Tools, signals: Signals, mailbox: Mailbox, engine: Engine, committer: Committer) -> None:
        self._tools, self._signals, self._mailbox = tools, signals, mailbox
        self._engine, self.committer = engine, committer
        now = tools.clock()
        self._policy = CommitPolicy(tools.settings.commit, last_commit=now)
        self._snapshots = SnapshotPolicy(tools.settings.snapshot, last_delta=now, last_full=now)
        self.fulls = Fulls(tools, engine.state, self._snapshots, committer.mark)
        name = f"effects-{tools.place.partition}"
        self._effects = tools.effects(engine.handler, name, partial(_effect_failed, tools))
        self._work = Work()
        #: records were rolled back and are not committed again yet
        self._redoing = False
        self._frozen: Frozen | None = None
        self._noted: list[Effect] = []
        self._outputs = 0
        #: with the first delta: the transaction from which on the deltas hold every change
        self._reach: int | None = None
        self._aborts = 0
        #: what the last commit was tried with
        self._used = Membership(-1, None, "")
        #: next offset to handle, and next offset to take from the mailbox
        self.position = self._taken = committer.position

    def inherit(self, restored: Restored) -> None:
        """What the restore found: what a full would save the next one, and fulls that are none (rule C4)."""
        self._snapshots.bytes, self._snapshots.entries = restored.unsaved_bytes, restored.unsaved_keys
        self._snapshots.keys = restored.state.keys
        self.fulls.cost.inherit(restored.work, restored.unsaved_bytes)
        self.fulls.refs = tuple(ref for ref in self.fulls.refs if ref not in restored.unusable)
        # What the gap wrote is in the next delta, what came between the last delta and the full in none.
        if restored.full is not None and restored.mark.last_delta < restored.full.first:
            self._reach = restored.full.first
        self.fulls.truncation.sound = {restored.full} if restored.full is not None else set()

    def begin(self) -> None:
        """Just before LIVE: effects that an earlier owner may not have run, then the user's hook."""
        self._effects.submit(self.committer.mark.effects)
        self._engine.handler.on_live()
        self._engine.refuse_writes("on_live")

    def renew(self) -> None:
        """Commit as soon as nothing else is to do: the group's offset is missing or old (rule D6)."""
        self._policy.last_commit = -math.inf

    @property
    def waiting(self) -> bool:
        """Records were taken and are not handled."""
        return self._work.waiting

    @property
    def uncommitted(self) -> bool:
        """Something was handled, or undone, and is not committed."""
        return self._policy.since is not None or self._redoing

    def ask_full(self) -> None:
        """Take a full from the next commit boundary on."""
        self._snapshots.asked = True

    # The loop

    def run(self) -> Event:
        """Until the partition is revoked or lost.

        :raises PartitionError: the partition fails. :raises ProducerDropped: fence and settle, then call `resume`.
        """
        while (event := self._signals.event()) not in (Event.LOST, Event.REVOKED):
            self._signals.raise_failure()
            self.turn()
        return event

    def turn(self) -> None:
        """One round; waits for records at most until a commit is due. Raises as `run`."""
        if not self._work.waiting:
            self._take()
        if (messages := self._work.next(self._policy.room())) is not None:
            self._handle(messages)
            self.fulls.between(self.committer.mark)
        if self._policy.due(self._tools.clock()) or (self._work.at_poison and self._policy.since is not None):
            self.commit()
        elif self._work.at_poison:
            self._work.face()

    def _take(self) -> None:
        wait = self._policy.wait(self._tools.clock(), _BUSY_IDLE if self.fulls.active else _IDLE)
        if len(self._effects.owed()) >= _OWED:
            self._signals.pause(min(wait, _BUSY_IDLE))
            self._rest()
            return
        batch = self._mailbox.take(self._policy.room(), wait)
        if batch is None:
            self._rest()
        elif messages := self._fresh(batch):
            self._work.add(messages)

    def drain(self) -> bool:
        """Commit what is processed; before a stop also take a full, if the settings say so. Raises as `run`.

        False: the partition was lost, or the deadline passed, before what was processed could commit.
        """
        while self._tools.clock() < self._signals.deadline and not self._signals.lost():
            while (messages := self._work.next(self._policy.room())) is not None:
                self._handle(messages)
            if self._policy.since is None:
                break
            self.commit()
            if not self._redoing:
                break
        if self._signals.lost():
            return False
        if self._signals.final:
            self._final_full()
        left = self._effects.close(max(0.0, min(_EFFECTS_WAIT, self._signals.deadline - self._tools.clock())))
        if self.fulls.pending or len(left) != len(self.committer.mark.effects):
            self._commit_mark()
            self.fulls.settle(self.committer.mark, self._signals.deadline)
        return self._policy.since is None and (not self._redoing or self._work.at_poison is not None)

    def _final_full(self) -> None:
        """Bounds, one more mark, the full at that mark: so the bounds lie before its header (rule S5)."""
        bounds = self.fulls.final_bounds(self._signals.deadline)
        if bounds is None:
            return
        if self._commit_mark():
            self.fulls.final(self.committer.mark, bounds, self._signals.deadline)

    def _commit_mark(self) -> bool:
        """One more mark in a drain; what a rebalance refuses (others leave, too) is tried until the deadline."""
        before = self.committer.mark.n
        while self.committer.mark.n == before:
            if self._signals.lost() or self._tools.clock() >= self._signals.deadline:
                return False
            self.commit()
        return True

    def abandon(self) -> None:
        """The partition fails: abort what is open, or its readers would wait for the transaction to time out."""
        try:
            self.committer.abort()
        except KafkaTrouble as error:
            self._tools.log.warning("kafka_retry", doing="abort before failing", cause=str(error))

    def close(self) -> None:
        """Let go of what runs beside; nothing is committed here."""
        self.fulls.close()
        self._effects.close(0.0)
        self._engine.handler.on_stop()

    def _rest(self) -> None:
        """Nothing came: move a full on, and keep the producer id from expiring."""
        if self._policy.since is not None:
            return
        now = self._tools.clock()
        done = len(self.committer.mark.effects) > 0 and not self._effects.owed()
        if self.fulls.mark_due(now) or done or self._policy.renewal_due(now):
            self.commit()
        else:
            self.fulls.boundary(self.committer.mark)

    # Handling

    def _fresh(self, batch: Batch) -> Sequence[Message]:
        """The records that continue what was taken before (rule T6)."""
        if batch.next <= self._taken:
            return ()
        if batch.previous > self._taken:
            raise missing(self._tools.place, self._taken, batch.previous)
        taken, self._taken = self._taken, batch.next
        if batch.previous < taken:
            return [message for message in batch.messages if offset(message) >= taken]
        return batch.messages

    def _handle(self, messages: Sequence[Message]) -> None:
        """Run the handler and send what it sent; whatever is refused ends in an undo, so nothing is half done."""
        try:
            self._process(messages)
        except TransactionAborted as error:
            self._redo(error)
        except ProducerFenced as error:
            raise self._fenced(error) from error
        except OutcomeUnknown as error:
            raise ProducerDropped(f"a partition may have left the transaction: {error}") from error
        except Poisoned as poison:
            self._work.fail_at(poison)
            self._undo()
        except MessageRefused as error:
            self._blame(messages, error)

    def _process(self, messages: Sequence[Message]) -> None:
        if not self.committer.is_open:
            self._require_clean_producer()
        self._policy.handled(len(messages), self._tools.clock())
        self._engine.run(messages, one_by_one=self._work.is_careful(messages))
        outputs = self._engine.take_outputs()
        self._outputs += len(outputs)
        self.committer.send(outputs)
        self.position = offset(messages[-1]) + 1

    def _blame(self, messages: Sequence[Message], error: MessageRefused) -> None:
        """Something that was sent is refused: find the record that sent it."""
        if len(messages) > 1:
            self._work.suspect()
        else:
            at = offset(messages[0])
            self._work.fail_at(Poisoned(at, self._refused(f"an output was refused: {error}", at)))
        self._undo()

    # Committing

    def commit(self) -> None:
        """Outputs, delta, mark and offsets become visible together, or the transaction is undone and handled again."""
        try:
            mark = self._commit_once()
        except TransactionAborted as error:
            self._redo(error)
        except ProducerFenced as error:
            raise self._fenced(error) from error
        except OutcomeUnknown as error:
            self._tools.metrics.transaction("unknown")
            raise ProducerDropped(f"the commit's outcome is unknown: {error}") from error
        except MessageRefused as error:
            raise self._refused(str(error), self.committer.position) from error
        else:
            self._committed(mark)

    def _commit_once(self) -> Mark:
        if not self.committer.is_open:
            self._require_clean_producer()
        began = self._tools.clock()
        self._used = self._tools.membership()
        if self._used.metadata is None:
            raise TransactionAborted("the group metadata is not known yet", stale=True)
        offsets_sent = self.committer.send_offsets(self.position, self._used.metadata)
        try:
            closing = self._closing(began)
        except BaseException:
            offsets_sent()
            raise
        mark = self.committer.commit(closing, offsets_sent)
        self._tools.metrics.commit_seconds.observe(self._tools.clock() - began)
        return mark

    def _closing(self, now: float) -> Closing:
        state, engine = self._engine.state, self._engine
        self._frozen = engine.freeze()
        self._noted = engine.take_effects()
        delta = state.delta(self._frozen) if self._snapshots.delta_due(now) else None
        owed = (*self._effects.owed(), *self._noted)
        commands = tuple(engine.take_commands())
        reach = self._reach if delta is not None else None
        return Closing(self.position, self._frozen, delta, self.fulls.next_refs(), owed, commands, reach)

    def _committed(self, mark: Mark) -> None:
        """The mark is the truth now: let memory follow, then whatever had to wait for it."""
        assert self._frozen is not None
        self._engine.state.commit(self._frozen, delta=mark.delta)
        self._effects.submit(self._noted)
        self._count(mark)
        now = self._tools.clock()
        self._snapshots.committed(
            now,
            delta=mark.delta,
            # A mark alone is nothing that a full would save: an idle partition takes no further ones.
            increment_bytes=self.committer.increment_bytes if self._frozen.changes or self._policy.records else 0,
            entries=sum(len(changes.keys) for changes in self._frozen.changes),
            keys=mark.keys,
        )
        self._frozen = None
        self._policy.committed(now)
        self._work.committed()
        self._noted, self._outputs, self._aborts, self._redoing = [], 0, 0, self._work.waiting
        self.fulls.boundary(mark)

    def _count(self, mark: Mark) -> None:
        metrics = self._tools.metrics
        metrics.transaction("committed")
        metrics.records.inc(self._policy.records)
        metrics.outputs.inc(self._outputs)
        metrics.position.set(self.position)
        metrics.keys.set(mark.keys)
        metrics.increment_bytes.inc(self.committer.increment_bytes)
        metrics.mailbox.set(self._mailbox.depth)

    # Undoing

    def _undo(self) -> int:
        """Abort, and set memory back to the last commit (rules T4, T5); how many records will be handled again."""
        try:
            self.committer.abort()
            self._tools.metrics.transaction("aborted")
            # After a tear an abort may have ended another transaction than ours: only the last mark tells (rule T4).
            self._require_clean_producer()
        except ProducerFenced as error:
            raise self._fenced(error) from error
        except (OutcomeUnknown, TransactionAborted) as error:
            raise ProducerDropped(f"the abort's outcome is unknown: {error}") from error
        return self._forget()

    def _forget(self) -> int:
        self._frozen, self._noted, self._outputs = None, [], 0
        self._engine.rollback()
        self._policy.rolled_back()
        self.position = self.committer.position
        count = self._work.undo()
        self._redoing = self._work.waiting
        return count

    def _redo(self, error: TransactionAborted) -> None:
        """The transaction could not commit while the partition is ours: undo it, and its records come again."""
        self._aborts += 1
        count = self._undo()
        self._tools.log.warning("rolled_back", cause=str(error), records=count, position=self.position)
        if error.stale:
            self._await_newer_membership()
        elif self._aborts > _ABORTS:
            raise self._refused(
                f"{self._aborts} transactions in a row were aborted, the last because {error}", self.position
            )
        else:
            self._signals.pause(min(0.05 * 2**self._aborts, 5.0))

    def _await_newer_membership(self) -> None:
        """A rebalance may have moved the generation: have the manager fetch it anew before the next commit."""
        place = self._tools.place
        self._tools.report(Report(place.partition, "stale"))
        until = self._tools.clock() + self._tools.settings.group.session_seconds
        while self._tools.membership().version == self._used.version and self._tools.clock() < until:
            if self._signals.pause(0.01):
                return
        self._signals.pause(min(0.01 * 2**self._aborts, 1.0))

    def resume(self, mark: Mark, committer: Committer) -> bool:
        """After a new producer has fenced: keep memory if the last mark allows it (rule T4); False means restore."""
        expected, previous = self.committer.expected, self.committer.mark
        committer.increment_bytes = self.committer.increment_bytes
        # Without a mark of our own in the log there is nothing that can have committed.
        tried = self._frozen is not None and expected.n > previous.n
        if tried and mark.identity == expected.identity:
            self.committer = committer
            self._committed(mark)
            return True
        if mark.identity != previous.identity:
            return False
        self.committer = committer
        self._forget()
        return True

    # Failing

    def _require_clean_producer(self) -> None:
        """Asked before every begin (rule T2)."""
        taint = self.committer.producer.tainted
        if taint:
            raise ProducerDropped(f"a commit or abort request may still be under way: {taint}")

    def _refused(self, why: str, position: int) -> OutputRefused:
        return refused(self._tools.place, why, position)

    def _fenced(self, error: HoldfastError) -> Fenced | Lost:
        self._tools.metrics.transaction("fenced")
        return fenced(self._tools.place, error, self.committer.position, lost=self._signals.lost())


def _effect_failed(tools: Tools, effect: Effect, error: BaseException, attempt: int) -> None:
    """No method: the runner's thread must not keep a Live, and with it a state, that is gone."""
    tools.metrics.effect_failures.inc()
    tools.log.warning(
        "effect_failed",
        function=effect.function,
        key=effect.key,
        attempt=attempt,
        cause=f"{type(error).__name__}: {error}",
    )
