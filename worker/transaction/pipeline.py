"""The transactions of one live partition: handle records, commit them, roll back what could not commit (rules T2-T7).

At most two transactions exist at a time. The older one is closed: its writes are frozen, and a thread of its own
commits it. The younger one is *ahead*: its records are handled, its outputs wait in memory, and Kafka sees nothing of
it until the older one has committed. If that fails, both are rolled back and their records are handled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Final, Protocol

from statehold.api.record import Message, at
from statehold.errors import MessageRefused, OutcomeUnknown, ProducerFenced, TransactionAborted, UnstorableValue
from statehold.messages.request import RequestNews
from statehold.messages.sent import Sent
from statehold.snapshot.format.records import CommitRecord
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools
from statehold.worker.common.errors import ProducerDropped, output_refused
from statehold.worker.common.reporting import log_pause
from statehold.worker.common.signals import Signals
from statehold.worker.failures.decisions import FailureDecisions
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import (
    FailureDecided,
    HandlingFailed,
    RecordUnknown,
    SideInputFailed,
    output_rejected,
)
from statehold.worker.handler.request_book import RequestBook
from statehold.worker.transaction.kafka_transaction import KafkaTransaction, Stage
from statehold.worker.transaction.participants import (
    NO_SIDE_INPUTS,
    CommitDraft,
    ParticipantFailed,
    Participants,
    SideInputs,
    SideWork,
)
from statehold.worker.transaction.record_buffer import Messages
from statehold.worker.transaction.rollback import Rollback
from statehold.worker.transaction.state import Commit, TransactionState

_UNTRACED: Final = nullcontext()
#: the part of commit.transaction_timeout that a batch may take before outputs wait for the commit
_SLOW: Final = 0.1


class RunHandler(Protocol):
    """`Engine.run`."""

    def __call__(self, messages: Messages, *, one_by_one: bool = False) -> int: ...


class TransactionPipeline:
    """Used by the partition's thread. Its memory survives a replaced producer (rule T4).

    Every method may raise PartitionError (the partition fails) and ProducerDropped (fence again, then `resume`).
    """

    def __init__(
        self,
        tools: Tools,
        signals: Signals,
        engine: Engine,
        state: TransactionState,
        participants: Participants,
        decisions: Callable[[], FailureDecisions],
        run: RunHandler | None = None,
    ) -> None:
        """`decisions`: returns the same ones at each call. `run`: in place of `Engine.run`."""
        self._tools, self._signals, self._engine = tools, signals, engine
        self._run_handler: RunHandler = engine.run if run is None else run
        self.state, self.participants = state, participants
        #: what becomes of failed records; made at the first failure
        self.decisions = decisions
        #: a side input failed, nothing else was rolled back, and it is to be handled again at once
        self._side_input_again = False

    @cached_property
    def rollback(self) -> Rollback:
        return Rollback(self._tools, self._signals, self._engine, self.state, self.participants, self.decisions)

    # Handling

    def handle(self, messages: Messages) -> None:
        """Run the handler and send its outputs; a failure rolls back everything uncommitted."""
        self._run(self._handle, messages)

    def _handle(self, messages: Messages) -> None:
        state, policy, tools = self.state, self.state.policy, self._tools
        if state.commit is None and state.kafka.stage is Stage.CLOSED:
            state.kafka.require_clean()
        if policy.since is None:
            for begun in self.participants.on_began:
                begun()
        began, careful_until = tools.clock(), state.buffer.careful_until
        careful = careful_until > 0 and at(messages[0]) < careful_until
        wait = state.commit is not None or (state.hold_outputs and not careful)
        policy.handled(len(messages), began)
        with _UNTRACED if tools.tracing is None else tools.tracing.batch(messages):
            handled = self._run_handler(messages, one_by_one=careful)
            if careful:
                self._search(messages[0])
        if handled < len(messages) or state.buffer.alone:
            self._put_back(messages, handled)
        seconds = tools.clock() - began
        state.handler_seconds += seconds
        if seconds > _SLOW * tools.settings.commit.transaction_timeout:
            state.hold_outputs = True
        try:
            self._emit(self._engine.take_outputs(), wait=wait)
        except MessageRefused as error:
            if handled and len(messages) > 1:
                state.buffer.suspect()
                raise RecordUnknown from error
            raise output_rejected(tools.place, "send an output", error, messages[0]) from error
        if handled:
            state.newest = messages[handled - 1]
            state.position = at(state.newest) + 1

    def _put_back(self, messages: Messages, handled: int) -> None:
        """Requeue what was not handled; a record before which a slice of event time has ended comes next, alone."""
        buffer, policy, slices = self.state.buffer, self.state.policy, self._engine.slices
        buffer.alone = handled < len(messages) and slices is not None and slices.inside
        if handled < len(messages):
            buffer.put_back(handled)
            policy.cut(len(messages) - handled)
        if slices is not None and slices.inside:
            if buffer.alone:
                policy.rows += slices.handed
            else:
                slices.reached()  # the record became a dead letter

    def _hasten(self, requests: RequestBook) -> None:
        """Commit soon if an asker waits for it."""
        if requests.hurry() and self._tools.settings.commit.early:
            self.state.policy.hasten()

    def _search(self, message: Message) -> None:
        """Check a record that was handled alone. :raises HandlingFailed, RecordUnknown: it is to blame."""
        if self.rollback.unstorable is not None:
            self.rollback.require_storable(message)
        for handled in self.participants.on_handled:
            handled(message)

    def _emit(self, outputs: Sequence[Sent], *, wait: bool) -> None:
        """Send outputs, or keep them behind those that wait."""
        state = self.state
        state.outputs += len(outputs)
        if self._engine.requests is not None:
            self._hasten(self._engine.requests)
        if wait or state.waiting:
            state.waiting += outputs
        else:
            state.kafka.send(outputs)

    # Committing

    def commit(self) -> None:
        """Commit the handled records, or a commit record alone, and wait for it."""
        if self.begin_commit():
            self.settle()

    def begin_commit(self) -> bool:
        """Wait for the commit in flight, close the open transaction and begin its commit. False: rolled back."""
        while self.settle() and (not self.state.waiting or self._run(self._send_waiting)):
            if self._run(self._launch):
                return True
            if not self._side_input_again:
                break
        return False

    def settle(self) -> bool:
        """Wait for the commit in flight, if any, and send the outputs ahead of it. False: all was rolled back."""
        return self.state.commit is None or self._run(self._settle)

    def _launch(self) -> None:
        state, kafka, tools = self.state, self.state.kafka, self._tools
        self._side_input_again = False
        if kafka.stage is Stage.CLOSED:
            kafka.require_clean()
        state.membership = membership = tools.membership()
        if membership.metadata is None:
            raise TransactionAborted("the group metadata is not known yet", stale=True)
        barrier = state.buffer.barrier
        if barrier is not None and state.buffer.failure is None and state.buffer.reached(state.position):
            state.position = max(state.position, barrier)  # its last records may have been deleted since
        now = tools.clock()
        draft = self._draft()
        chunks = kafka.pack(draft)
        commit = partial(kafka.commit, draft, chunks, membership.metadata)
        call = tools.run_commit(commit, f"commit-{tools.place.partition}")
        newest = state.newest.timestamp()[1] if state.newest is not None else 0
        state.commit = Commit(call, draft, state.outputs, now, newest)
        state.outputs, state.handler_seconds = 0, 0.0
        state.policy.close()
        state.buffer.close()

    def _draft(self) -> CommitDraft:
        """Handle the side inputs, freeze the writes, and let each participant set its fields."""
        state, engine = self.state, self._engine
        if state.policy.since is None:
            for begun in self.participants.on_began:  # side inputs alone make this transaction
                begun()
        side = self._side_inputs()
        before, runs = state.kafka.record, b""
        positions = {self._tools.place.names.input: state.position}
        if before.inputs:
            positions, runs = state.buffer.reach(before, state.position)
        draft = CommitDraft(
            before=before,
            position=state.position,
            positions=positions,
            runs=runs,
            frozen=engine.freeze(),
            side=side,
            records=state.policy.records,
            seconds=state.handler_seconds,
            commands=(*engine.take_commands(), *side.commands) if engine.commands else side.commands,
            full_snapshots=before.full_snapshots,
        )
        if engine.requests is not None and (news := engine.requests.close()) is not None:
            draft.requests, draft.force_delta = news, news.too_large
        for contribute in self.participants.on_contribute:
            contribute(draft)
        return draft

    def _side_inputs(self) -> SideInputs:
        """Handle the inputs of other topics.

        :raises SideInputFailed: :raises FailureDecided:
        """
        state, before = self.state, self.state.kafka.record
        none = NO_SIDE_INPUTS if len(before.positions) == 1 else SideInputs.unchanged(before, self._tools.place.names)
        work = SideWork(before, state.position, state.policy.since is None, self._send_side_outputs, none)
        slices = self._engine.slices
        if slices is not None and before.paused is None:  # while paused, what ends the pause waits for no record
            work.inside = slices.inside and not self.participants.blocked()
        if state.buffer.failure is not None:  # the first failure comes first
            return work.done
        try:
            for side_inputs in self.participants.on_side_inputs:
                if not work.closed:
                    side_inputs(work)
        except FailureDecided:
            raise
        except HandlingFailed as failure:
            raise SideInputFailed(state.position, failure.error) from failure
        return work.done

    def _send_side_outputs(self, message: Message) -> None:
        if self.rollback.searching:
            self.rollback.require_storable(message)
        try:
            if outputs := self._engine.take_outputs():
                self._emit(outputs, wait=False)
        except MessageRefused as error:
            what = "send an output of a command of the control topic, or of a record of a retry topic"
            raise output_rejected(self._tools.place, what, error, self.state.position) from error

    def _settle(self, send_waiting: bool = True) -> None:
        """Wait for the commit in flight; then send what its outputs kept waiting."""
        commit = self.state.commit
        assert commit is not None
        commit.call.wait()
        self._committed(commit)
        if send_waiting and self.state.policy.since is not None and not self.state.hold_outputs:
            self._send_waiting()

    def _committed(self, commit: Commit) -> None:
        """Apply a committed transaction to memory, then call the participants."""
        state, tables, tools, draft = self.state, self._engine.state, self._tools, commit.draft
        tables.version += 1
        record = state.kafka.committed()
        tables.commit(draft.frozen, delta=draft.delta is not None)
        tables.version += 1
        if record.paused != draft.before.paused:
            log_pause(tools, record)
        state.commit, state.aborts = None, 0
        state.records += draft.records
        state.buffer.committed()
        state.policy.last_commit = tools.clock()
        tools.metrics.committed(
            seconds=tools.clock() - commit.began,
            handler_seconds=draft.seconds,
            records=draft.records,
            outputs=commit.outputs,
            increment_bytes=state.kafka.increment_bytes,
            position=draft.position,
            keys=record.keys,
            newest=commit.newest,
        )
        if self._engine.requests is not None and draft.requests is not None:
            self._count_requests(self._engine.requests, draft.requests)
        for committed in self.participants.on_committed:
            committed(record, draft)

    def _count_requests(self, requests: RequestBook, news: RequestNews) -> None:
        requests.committed(news)
        for what, count in news.counts.items():
            self._tools.metrics.inc(metrics.REQUESTS, count, what)

    def _send_waiting(self) -> None:
        state = self.state
        state.kafka.require_clean()
        waiting, state.waiting = state.waiting, []
        try:
            state.kafka.send(waiting)
        except MessageRefused as error:
            if state.hold_outputs:  # otherwise handling it again without a commit in flight finds the record
                state.buffer.suspect()
            raise RecordUnknown from error

    # Failures

    def _run(self, step: Callable[..., None], *args: object) -> bool:  # noqa: C901, PLR0912 - the one ladder of all failures
        """Run one step; False: it failed, and everything uncommitted was rolled back.

        Never pass a lambda: the frames of a kept error would hold its closure, and with it the state.
        """
        failed: ParticipantFailed | None = None
        try:
            step(*args)
        except FailureDecided:
            self._side_input_again = self.rollback.undo() == 0 and not self._signals.leaving()
        except SideInputFailed as failure:
            self.state.buffer.fail_at(failure)
            self.rollback.undo()
        except HandlingFailed as failure:
            self.decisions().failed(failure)
            if self.state.commit is None or self._run(self._settle, False):
                self.state.buffer.fail_at(failure)  # everything before it is handled again, then its failure is faced
                self.rollback.undo()
        except RecordUnknown:
            self.rollback.undo()
        except UnstorableValue as error:
            self.rollback.after_unstorable(error)
        except TransactionAborted as error:
            self.rollback.after_abort(error)
        except ProducerFenced as error:
            raise self.rollback.fenced(error) from error
        except OutcomeUnknown as error:
            self._tools.metrics.inc(metrics.TRANSACTIONS, 1, "unknown")
            raise ProducerDropped(f"the outcome of the transaction is unknown: {error}") from error
        except MessageRefused as error:  # in the delta or the commit record
            raise output_refused(self._tools.place, str(error), self.state.kafka.position) from error
        except ParticipantFailed as failure:
            failed = failure
        else:
            return True
        if failed is not None:  # outside the except block, because a kept error must not reference a participant
            self.rollback.after_participant(failed)
        return False

    def resume(self, record: CommitRecord, kafka: KafkaTransaction) -> bool:
        """Continue with a new producer: keep memory if `record`, the last one, allows it (rule T4). False: restore."""
        state = self.state
        expected, previous, commit = state.kafka.expected, state.kafka.record, state.commit
        # Without its commit record in the log the transaction cannot have committed.
        committed = commit if expected.n > previous.n and record.identity == expected.identity else None
        if committed is None and record.identity != previous.identity:
            return False
        kafka.increment_bytes = state.kafka.increment_bytes
        state.kafka = kafka
        if committed is not None:
            self._committed(committed)
        self.rollback.forget()
        return True
