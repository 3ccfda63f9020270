"""The live loop of one partition: take, handle, commit; drain before it goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

from statehold.messages.command import Command
from statehold.record import Message
from statehold.snapshot.format.records import Mark
from statehold.snapshot.restore.restore import Restored
from statehold.snapshot.state import State
from statehold.worker.common.context import Tools
from statehold.worker.common.errors import missing
from statehold.worker.common.lifecycle import Event
from statehold.worker.common.mailbox import Batch, Mailbox
from statehold.worker.common.signals import Signals
from statehold.worker.handler.engine import Engine
from statehold.worker.participants.effect_runner import Pending
from statehold.worker.transaction.commit_contents import Riders
from statehold.worker.transaction.pipeline import Transacting
from statehold.worker.transaction.record_buffer import offset
from statehold.worker.transaction.transaction import Committer

_IDLE = 0.5
_BUSY_IDLE = 0.01
#: how often a partition that stands still looks for commands
_STILL = 0.1


class Live:
    """Used by the partition's thread. What it holds in memory survives a replaced producer (rule T4)."""

    def __init__(self, tools: Tools, signals: Signals, mailbox: Mailbox, engine: Engine, committer: Committer) -> None:
        self._tools, self._signals, self._mailbox, self._engine = tools, signals, mailbox, engine
        self._riders = Riders(tools, engine, committer.mark, signals)
        self._transacting = Transacting(tools, signals, engine, committer, self._riders)
        self._policy, self._work = self._transacting.policy, self._transacting.work
        self.fulls = self._riders.fulls
        #: the command by which it stands still, as far as it was told
        self._paused: Command | None = None
        #: next offset to take from the mailbox
        self._taken = committer.position

    def inherit(self, restored: Restored) -> None:
        """What the restore found: see `Riders.inherit`."""
        self._riders.inherit(restored)

    def begin(self) -> None:
        """Just before LIVE: effects that an earlier owner may not have run, then the user's hook."""
        if (sinking := self._transacting.sinking) is not None:
            sinking.open(self.committer.mark)
            self._transacting.align()
        self._riders.begin(self.committer.mark)
        self._engine.call_hook("on_live")
        self._engine.refuse_writes("on_live")

    def renew(self) -> None:
        """Commit as soon as nothing else is to do: the group's offset is missing or old (rule D6)."""
        self._policy.last_commit = -math.inf

    @property
    def committer(self) -> Committer:
        return self._transacting.committer

    @property
    def state(self) -> State:
        return self._engine.state

    @property
    def records(self) -> int:
        """Input records that have committed since it went live."""
        return self._transacting.records

    @property
    def parked(self) -> int | None:
        """Keys whose records wait as dead letters, as committed; None where no record can become one."""
        return self._engine.letters.keys if self._engine.letters is not None else None

    @property
    def later(self) -> int | None:
        """Records that wait to be tried again, as far as they were read; None where nothing is tried later."""
        return self._riders.retries.held

    @property
    def position(self) -> int:
        """The next offset to handle."""
        return self._transacting.position

    @property
    def waiting(self) -> bool:
        """Records were taken and are not handled, or one that failed is still to be faced."""
        return self._work.waiting or self._work.poisoned

    @property
    def burdened(self) -> bool:
        """Too many side effects are owed: no more records now."""
        return self._transacting.burdened

    @property
    def effects(self) -> Pending:
        """Side effects that are owed and were submitted, as far as it has looked. Any thread."""
        return self._riders.pending

    @property
    def next_timer(self) -> float | None:
        """Seconds since 1970 before which no timer is due. Any thread."""
        moments = self._engine.moments
        return None if moments is None or math.isinf(due := moments.due) else due / 1000

    @property
    def in_flight(self) -> bool:
        """A commit is under way."""
        return self._transacting.in_flight

    @property
    def uncommitted(self) -> bool:
        """Something was handled, or undone, and is not committed."""
        return self._policy.since is not None or self._transacting.in_flight or self._transacting.redoing

    def ask_full(self) -> None:
        """Take a full from the next commit boundary on."""
        self._riders.ask_full()

    def commit(self) -> None:
        """Commit what was handled, or a mark alone. Raises as `run`."""
        self._transacting.commit()

    def finish(self) -> None:
        """Commit what was handled, if anything was. Raises as `run`."""
        if self._transacting.settle() and self._policy.since is not None:
            self._transacting.commit()

    def resume(self, mark: Mark, committer: Committer) -> bool:
        """After a new producer has fenced: see `Transacting.resume`."""
        return self._transacting.resume(mark, committer)

    def abandon(self) -> None:
        """The partition fails: see `Transacting.abandon`."""
        self._transacting.abandon()

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
        transacting, work = self._transacting, self._work
        if self._stands_still():
            self._stand_still()
            return
        if transacting.at_barrier or transacting.commands_first:
            transacting.commit()
            return
        if transacting.landed or (transacting.in_flight and not work.waiting and self._mailbox.depth == 0):
            transacting.settle()
        if transacting.burdened:
            self._hold()
        elif not work.waiting and not work.poisoned:
            self._take()
        if not transacting.burdened and (messages := work.next(self._policy.room())) is not None:
            transacting.handle(messages)
            self.fulls.between(self.committer.mark)
        if work.at_poison is not None:
            self._go_up_to_poison()
        elif self._policy.due(self._tools.clock()):
            transacting.begin_commit()
            if work.careful or transacting.searching:  # to find one among many, everything goes one step at a time
                transacting.settle()

    def _stands_still(self) -> bool:
        """A command says so, and the last mark repeats it; a failure that is under way is faced first."""
        paused = self.committer.mark.paused
        if paused != self._paused:
            self._paused = paused
            by = paused.issuer if paused is not None else None
            self._tools.log.info("paused" if paused else "resumed", by=by, position=self.committer.position)
        return paused is not None and not self._work.poisoned and not self._transacting.behind

    def _stand_still(self) -> None:
        """What was handled commits, no transaction stays open, no record is taken; commands are still obeyed."""
        if self._transacting.settle() and self._policy.since is not None:
            self._transacting.commit()
            return
        self._signals.any.wait(_STILL)
        self._rest()

    def _go_up_to_poison(self) -> None:
        """What lies before the record that failed is committed first; then it is that record's turn."""
        if self._policy.since is not None:
            self._transacting.commit()
        elif self._transacting.settle() and (poison := self._work.at_poison) is not None:
            if not poison.batch and self._transacting.failing.spare(poison):
                self._work.spare()
            else:
                self._work.face()

    def _hold(self) -> None:
        """So many side effects are owed that no record is handled before some are done. That is not being idle."""
        self._riders.controlled.ticking.handled()
        self._signals.pause(min(self._policy.wait(self._tools.clock(), _BUSY_IDLE), _BUSY_IDLE))
        self._rest()

    def _take(self) -> None:
        wait = self._policy.wait(self._tools.clock(), _BUSY_IDLE if self.fulls.active else _IDLE)
        batch = self._mailbox.take(self._policy.room(), wait)
        if batch is None:
            self._rest()
        elif messages := self._fresh(batch):
            self._work.add(messages)

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

    def _rest(self) -> None:
        """Nothing came: move a full on, and keep the producer id from expiring."""
        if self._policy.since is not None or not self._transacting.settle():
            return
        self._engine.renew()  # what it saw last need not be kept for it
        now, mark = self._tools.clock(), self.committer.mark
        due = self._riders.mark_due(mark, now) and not self._transacting.behind
        if due or self._policy.renewal_due(now):
            self.commit()
        else:
            self.fulls.boundary(mark)

    # The end

    def drain(self) -> bool:
        """Commit what is processed; before a stop also take a full, if the settings say so. Raises as `run`.

        False: the partition was lost, or the deadline passed, before what was processed could commit.
        """
        while self._tools.clock() < self._signals.deadline and not self._signals.lost():
            self._transacting.settle()
            while self._may_redo() and (messages := self._work.next(self._policy.room())) is not None:
                self._transacting.handle(messages)
            if self._policy.since is None:
                break
            self.commit()
            if not self._transacting.redoing:
                break
        if self._signals.lost():
            return False
        if self._signals.final:
            self._final_full()
        stop_wait = self._tools.settings.effects.stop_wait
        wait = max(0.0, min(stop_wait, self._signals.deadline - self._tools.clock()))
        if self._riders.finish(self.committer.mark, wait):
            self._commit_mark()
            self.fulls.settle(self.committer.mark, self._signals.deadline)
        return not self.uncommitted or (self._policy.since is None and self._work.at_poison is not None)

    def _may_redo(self) -> bool:
        """What was handled before and rolled back is handled again; what waits beyond that is the next owner's."""
        behind = self._transacting.position < self._transacting.reached
        return behind and not self._signals.lost() and self._tools.clock() < self._signals.deadline

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

    def close(self) -> None:
        """Let go of what runs beside, then call the hook: each, whatever another raises; nothing is committed."""
        with ExitStack() as last_first:
            last_first.callback(self._engine.call_hook, "on_stop")
            if self._transacting.sinking is not None:
                last_first.callback(self._transacting.sinking.close)
            last_first.callback(self._riders.close)
