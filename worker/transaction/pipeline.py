"""Handle records, commit them, undo what could not commit: the transactions of one live partition (rules T2-T7).

At most two transactions exist at a time. The older one has been closed: its writes are frozen, and it commits beside
the worker's thread. The younger one is *ahead*: its records are handled, its outputs wait in memory, and Kafka hears
of it only after the older one has ended well. If that ends badly both are rolled back, and their records come again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from statehold.errors import (
    KafkaTrouble,
    MessageRefused,
    OutcomeUnknown,
    ProducerFenced,
    StateholdError,
    TransactionAborted,
)
from statehold.ports import Membership
from statehold.record import Message
from statehold.sink import BadRow, DatabaseTrouble
from statehold.snapshot.format import digest
from statehold.snapshot.format.records import Mark
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools
from statehold.worker.common.errors import ProducerDropped, fenced, refused
from statehold.worker.common.ownership import await_newer_membership
from statehold.worker.common.reporting import tell_committed
from statehold.worker.common.signals import Signals
from statehold.worker.failures.decisions import Failing
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import Poisoned
from statehold.worker.participants.commands import Obeyed
from statehold.worker.participants.side_inputs import Obeying
from statehold.worker.sinks.coordinator import sinking_of
from statehold.worker.sinks.row_bisection import Suspects
from statehold.worker.transaction.commit_contents import Flight, Riders
from statehold.worker.transaction.output_buffer import Outgoing
from statehold.worker.transaction.policy import CommitPolicy
from statehold.worker.transaction.record_buffer import Work, offset
from statehold.worker.transaction.transaction import Committer

#: aborts in a row, without a commit between, after which the partition fails
_ABORTS = 10


class Transacting:
    """Used by the partition's thread. What it holds in memory survives a replaced producer (rule T4)."""

    def __init__(self, tools: Tools, signals: Signals, engine: Engine, committer: Committer, riders: Riders) -> None:
        self._tools, self._signals, self._engine = tools, signals, engine
        self.committer, self._riders = committer, riders
        self.policy = CommitPolicy(tools.settings.commit, last_commit=tools.clock())
        self.work = Work()
        self.failing = Failing(tools, signals, engine)
        #: the database of the handler's sinks; None where there is none
        self.sinking = sinking_of(tools, signals, engine)
        self._suspects = Suspects(tools, self.policy, self.failing) if self.sinking is not None else None
        #: the commit that is under way
        self._flight: Flight | None = None
        #: outputs of the transaction that is ahead of it, too
        self._outgoing = Outgoing(tools)
        self._obeying = Obeying(tools, engine, riders, self._outgoing, self.failing)
        #: input records that have committed here
        self.records = 0
        #: seconds in the handler for the open transaction, and the record that it handled last
        self._handling = 0.0
        self._newest: Message | None = None
        self._aborts = 0
        #: what the last commit was tried with
        self._used = Membership(-1, None, "")
        #: next offset to handle, and the highest one ever: below it records are handled again
        self.position = self.reached = committer.position

    @property
    def redoing(self) -> bool:
        """Records were rolled back and are not committed again yet."""
        return self.committer.position < self.reached

    @property
    def in_flight(self) -> bool:
        return self._flight is not None

    @property
    def burdened(self) -> bool:
        return self._riders.burdened(self._flight)

    @property
    def behind(self) -> bool:
        """The database of the sinks holds what Kafka does not yet: that comes first."""
        return self.work.barrier is not None

    @property
    def at_barrier(self) -> bool:
        """Commit, before anything else is handled."""
        return self.work.at_barrier(self.position)

    @property
    def searching(self) -> bool:
        """Whose row the database refuses is being found out: one transaction at a time."""
        return self._suspects is not None and self._suspects.active

    @property
    def commands_first(self) -> bool:
        """Commit, before anything else is handled: a command is to be alone."""
        alone = self._suspects is not None and self._suspects.commands_first and not self.behind
        return alone and not self.work.poisoned and self._riders.controlled.waiting(self.committer.mark)

    @property
    def landed(self) -> bool:
        """The commit that was under way has ended: `settle` will not block."""
        return self._flight is not None and self._flight.commit.ended()

    # Handling

    def handle(self, messages: Sequence[Message]) -> None:
        """Run the handler and send what it sent; whatever is refused ends in an undo, so nothing is half done.

        Raises as all of this: PartitionError, or ProducerDropped.
        """
        try:
            self._try(self._process, messages)
        except Poisoned as poison:
            self.failing.failed(poison)
            if self._land():
                self.work.fail_at(poison)
                self._undo()
        except MessageRefused as error:
            self._blame(messages, error)

    def _process(self, messages: Sequence[Message]) -> None:
        if not self.committer.is_open:
            self._require_clean_producer()
        if self.policy.since is None:
            self._engine.renew()
        began, careful = self._tools.clock(), self.work.is_careful(messages)
        wait = self._flight is not None or (self._outgoing.holding and not careful)
        self.policy.handled(len(messages), began)
        with self._tools.tracing.batch(messages):
            handled = self._engine.run(messages, one_by_one=careful)
        self.work.put_back(handled)
        self.policy.cut(len(messages) - handled)
        seconds = self._tools.clock() - began
        self._handling += seconds
        self._outgoing.ran(seconds)
        self._outgoing.take(self._engine.take_outputs(), self.committer, wait=wait)
        if handled:
            self._newest = messages[handled - 1]
            self.position = offset(self._newest) + 1

    def _blame(self, messages: Sequence[Message], error: MessageRefused) -> None:
        """Something that was sent is refused: find the record that sent it."""
        if len(messages) > 1:
            self.work.suspect()
        else:
            at = offset(messages[0])
            failed = refused(self._tools.place, f"an output was refused: {error}", at)
            failed.__cause__ = error
            poison = Poisoned(at, failed)
            self.failing.failed(poison)
            self.work.fail_at(poison)
        self._undo()

    # Committing

    def commit(self) -> None:
        """Outputs, delta, mark and offsets become visible together, or the transaction is undone and handled again."""
        if self.begin_commit():
            self.settle()

    def begin_commit(self) -> bool:
        """Close the transaction and let it commit beside, once the one before it is settled. False: it was undone."""
        while True:
            try:
                told = self.settle() and (not self._outgoing.waiting or self._try(self._tell))
                return told and self._try(self._launch)
            except Poisoned as poison:  # what came beside the input: what was handled before it is committed first
                if not poison.decided:
                    self.work.fail_at(poison)
                if self._undo() or not poison.decided or self._signals.leaving():
                    return False

    def settle(self) -> bool:
        """Wait for the commit that is under way, if any, and send what is ahead of it. False: all was undone."""
        if self._flight is None:
            return True
        return self._land() and self._try(self._catch_up)

    def _launch(self) -> None:
        if not self.committer.is_open:
            self._require_clean_producer()
            self._outgoing.opens(self.committer)
        now = self._tools.clock()
        used = self._used = self._tools.membership()
        if used.metadata is None:
            raise TransactionAborted("the group metadata is not known yet", stale=True)
        if self.at_barrier and self.work.barrier is not None:  # its last records may have been deleted since
            self.position = max(self.position, self.work.barrier)
        if self.policy.since is None:
            self._engine.renew()  # commands and ticks alone make this transaction
        obeyed = self._obey()
        self._riders.handled(self.policy.records, self._handling)
        frozen, effects = self._engine.freeze(), self._engine.effects.take()
        closing = self._riders.closing(self.position, frozen, effects, obeyed, now)
        committer = self.committer
        try:
            parts = committer.pack(closing)
        except MessageRefused as error:
            raise refused(self._tools.place, str(error), committer.position) from error
        before = None
        if self.sinking is not None:
            before = self.sinking.closing(self.position, digest.to_bytes(frozen.digest), obeyed, committer.mark)
        call = partial(committer.commit, closing, parts, used.metadata, before)
        begun = self._tools.beside(call, f"commit-{self._tools.place.partition}")
        newest = self._newest.timestamp()[1] if self._newest is not None else 0
        records, outputs = self.policy.close(), self._outgoing.closed()
        letters = self._engine.letters.close() if self._engine.letters is not None else None
        self._flight = Flight(begun, closing, effects, records, outputs, now, self._handling, newest, letters)
        self._tools.tracing.commit_began(committer.mark.n + 1, records, closing.position)
        self.work.close()
        self._handling = 0.0

    def _obey(self) -> Obeyed:
        """:raises Poisoned: what came beside the input cannot be handled."""
        if self.work.poisoned or (self.behind and not self.at_barrier):
            return self._obeying.hold()
        if self.sinking is not None and self.sinking.ahead is not None:
            return self._obeying.again(self.sinking.ahead, self.committer, self.position)
        idle = self.policy.since is None
        if self.searching and not idle:
            return self._obeying.hold()
        return self._obeying.obey(self.committer, self.position, idle=idle, alone=self.searching)

    def _land(self) -> bool:
        """False: the commit that was under way, and what is ahead of it, was undone."""
        return self._flight is None or self._try(self._await, self._flight)

    def _await(self, flight: Flight) -> None:
        try:
            flight.commit.wait()
        except MessageRefused as error:
            raise refused(self._tools.place, str(error), self.committer.position) from error
        self._committed(flight)

    def _committed(self, flight: Flight) -> None:
        """The mark is the truth now: let memory follow, then whatever had to wait for it."""
        state = self._engine.state
        state.version += 1
        mark = self.committer.committed()
        state.commit(flight.closing.frozen, delta=mark.delta)
        state.version += 1
        self.records += flight.records
        self._flight, self._aborts = None, 0
        if self.sinking is not None:
            self.sinking.committed()
            self.align()
        if self._suspects is not None:
            self._suspects.committed(mark)
        self._tools.tracing.commit_ended(committed=True)
        self.work.committed()
        tell_committed(self._tools, flight, mark, self.committer)
        self.policy.committed(self._tools.clock())
        self._riders.committed(mark, flight, self.committer.increment_bytes)
        self._riders.fulls.boundary(mark)

    def _catch_up(self) -> None:
        """Kafka is told of the transaction that was ahead."""
        if self.policy.since is not None and not self._outgoing.holding:
            self._tell()

    def _tell(self) -> None:
        self._require_clean_producer()
        try:
            self._outgoing.send(self.committer)
        except MessageRefused:
            if self._outgoing.holding:
                self.work.suspect()
            self._undo()  # handled again with nothing in flight, the record is found

    # Undoing

    def _try(self, step: Callable[..., None], *args: object) -> bool:
        """False: the step could not be done while the partition is ours, and all that is uncommitted was undone.

        Not for a lambda: the frames of a kept error hold its closure, and with it the state.
        """
        try:
            step(*args)
        except TransactionAborted as error:
            self._redo(error)
        except ProducerFenced as error:
            raise self._superseded(error) from error
        except OutcomeUnknown as error:
            self._tools.metrics.inc(metrics.TRANSACTIONS, 1, "unknown")
            raise ProducerDropped(f"the outcome of the transaction is unknown: {error}") from error
        except BadRow as error:
            self._suspect(error)
        except DatabaseTrouble as error:
            self._reconnect(error)
        else:
            return True
        return False

    def _undo(self) -> int:
        """Abort, and set memory back to the last commit (rules T4, T5); how many records will be handled again."""
        try:
            # A connection that was lost meanwhile means a new producer in any case, and librdkafka may end the process
            # when it aborts over such a one (an assertion in its handling of AddPartitionsToTxn).
            self._require_clean_producer()
            self.committer.abort()
            self._tools.metrics.inc(metrics.TRANSACTIONS, 1, "aborted")
            # After a tear an abort may have ended another transaction than ours: only the last mark tells (rule T4).
            self._require_clean_producer()
        except ProducerFenced as error:
            raise self._superseded(error) from error
        except (OutcomeUnknown, TransactionAborted) as error:
            raise ProducerDropped(f"the abort's outcome is unknown: {error}") from error
        return self._forget()

    def _forget(self) -> int:
        self._flight, self._handling = None, 0.0
        self._tools.tracing.commit_ended(committed=False)
        self._outgoing.forget()
        self._engine.rollback()
        if self.sinking is not None:
            self.sinking.undone()
            self.align()
        self.policy.close()
        self.reached = max(self.reached, self.position)
        self.position = self.committer.position
        return self.work.undo()

    def _redo(self, error: TransactionAborted) -> None:
        """Undo what is uncommitted, and its records come again."""
        self._aborts += 1
        count = self._undo()
        self._tools.log.warning("rolled_back", cause=str(error), records=count, position=self.position)
        if error.stale:
            await_newer_membership(self._tools, self._signals, self._used)
            self._signals.pause(min(0.01 * 2**self._aborts, 1.0))
        elif self._aborts > _ABORTS:
            raise refused(
                self._tools.place,
                f"{self._aborts} transactions in a row were aborted, the last because {error}",
                self.position,
            )
        else:
            self._signals.pause(min(0.05 * 2**self._aborts, 5.0))

    def _suspect(self, error: BadRow) -> None:
        """The database refuses a row: the record that put it is faced, once it is known."""
        assert self._suspects is not None
        assert self._flight is not None
        poison = self._suspects.blame(self._flight, self.committer.position, error)
        if poison is not None:
            self.failing.failed(poison)
            self.work.fail_at(poison)
        self._reconnect(error)

    def _reconnect(self, error: BadRow | DatabaseTrouble) -> None:
        """Its connection is of no further use: undo, look what the database holds, and the records come again."""
        assert self.sinking is not None
        count = self._undo()
        self._tools.log.warning("rolled_back", cause=f"sink: {error}", records=count, position=self.position)
        self.sinking.reopen(self.committer.mark)
        self.align()

    def align(self) -> None:
        """Let the work follow what the database is ahead by."""
        if self.sinking is not None:
            self.work.barrier = self.sinking.barrier
            self.failing.handled_until = -1 if self.sinking.barrier is None else self.sinking.barrier

    def resume(self, mark: Mark, committer: Committer) -> bool:
        """After a new producer has fenced: keep memory if the last mark allows it (rule T4); False means restore."""
        expected, previous, flight = self.committer.expected, self.committer.mark, self._flight
        committer.increment_bytes = self.committer.increment_bytes
        # Without a mark of our own in the log there is nothing that can have committed.
        tried = flight is not None and expected.n > previous.n
        if tried and mark.identity == expected.identity:
            assert flight is not None
            self.committer = committer
            self._committed(flight)
        elif mark.identity == previous.identity:
            self.committer = committer
        else:
            return False
        self._forget()
        return True

    def abandon(self) -> None:
        """The partition fails: abort what is open, or its readers would wait for the transaction to time out."""
        with suppress(Exception):  # what it raised is told already
            if self._flight is not None:
                self._flight.commit.wait()
                self.committer.committed()
        self._tools.tracing.commit_ended(committed=False)
        try:
            self.committer.abort()
        except KafkaTrouble as error:
            self._tools.log.warning("kafka_retry", doing="abort before failing", cause=str(error))

    # Failing

    def _require_clean_producer(self) -> None:
        """Asked before every begin (rule T2)."""
        taint = self.committer.producer.tainted
        if taint:
            raise ProducerDropped(f"a commit or abort request may still be under way: {taint}")

    def _superseded(self, error: StateholdError) -> Exception:
        """The broker ends a transaction that is open for too long in the way in which another owner does."""
        outlived = not self._signals.lost() and self._outgoing.outlived(self.committer)
        self._tools.metrics.inc(metrics.TRANSACTIONS, 1, "unknown" if outlived else "fenced")
        if outlived:
            return ProducerDropped(f"{outlived}: {error}")
        return fenced(self._tools.place, error, self.committer.position, lost=self._signals.lost())
