"""Durable calls of a partition: a commit starts those that its transaction requested, and pins the answers.

An answer has no place in the order of the records, so the worker gives it one: at the end of a transaction, like a
command of the control topic. The commit record pins it, and the same transaction deletes the row of the call (rules P1,
Q2). So a kill repeats the calls that were in progress, and no answer counts twice, wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from statehold.messages.call_outcome import CallJob, CallOutcome, ids_answered
from statehold.messages.pinned_command import Pinned, PinnedMessage
from statehold.snapshot.format.records import CommitRecord
from statehold.telemetry import metrics
from statehold.worker.calls.attempts import stored_text
from statehold.worker.calls.runner import CallRunner
from statehold.worker.common.context import CallFunction, Calls, CallSetting, Pending, Tools
from statehold.worker.common.reporting import PinningFormat
from statehold.worker.common.signals import Signals
from statehold.worker.handler.call_book import CallBook, Resolved
from statehold.worker.handler.engine import Engine
from statehold.worker.transaction.participants import CommitDraft, Participant, SideWork

#: most answers in one transaction, because each may take as long as a record
_MOST: Final = 2000
#: ids that a log event lists
_NAMED: Final = 20


class DurableCalls(Participant):
    """Used by the partition's thread, during one live phase."""

    def __init__(
        self, tools: Tools, signals: Signals, engine: Engine, book: CallBook, wake: Callable[[], None]
    ) -> None:
        self._tools, self._engine, self._book = tools, engine, book
        self._place, self._limit = tools.place, tools.settings.calls.pending
        most = tools.settings.kafka.message_max_bytes
        #: bytes of pinned answers, because a commit record contains them and must fit a message
        self._room = most // 2
        functions = {
            name: CallFunction(table.options, table.argument, table.result) for name, table in book.tables.items()
        }
        about = CallSetting(
            functions,
            partial(_attempt_failed, tools),
            wake,
            tools.settings.calls,
            partial(_outage, tools),
            signals.lost,
            largest=most // 4,
            clock=tools.clock,
        )
        self._runner: Calls = (tools.calls or CallRunner)(about)
        #: calls of committed records that no commit has answered, by id
        self._jobs: dict[str, CallJob] = {}
        #: when the calls in progress were submitted, by id
        self._began: dict[str, float] = {}
        #: what ended and is not committed, by id, and the ids that the open or committing transaction has
        self._ended: dict[str, CallOutcome] = {}
        self._taken: list[str] = []
        #: what operators did in the commit in flight
        self._resolved: list[Resolved] = []
        #: requests of the commit in flight
        self._committing = 0
        self._format = PinningFormat(partial(tools.log.warning, "calls_wait"), "a call was answered, and answers")
        self._blocked = False
        #: pending calls, and the number of dead ones, for any thread
        self.pending, self.dead = Pending(), 0
        #: the `Call`s whose other system is down, for any thread
        self.outages: Callable[[], tuple[str, ...]] = self._runner.outages

    def opened(self, record: CommitRecord) -> None:
        """Make the calls that an earlier owner has no committed answer of."""
        self._submit(list(self._book.pending()))

    def blocks(self) -> bool:
        """Return whether too many calls are pending, those of the open transaction included."""
        self._book.room = room = self._limit - len(self._jobs) - self._committing
        return len(self._book.new) >= room

    def wants_commit(self, record: CommitRecord, now: float) -> bool:
        """Return whether an answer waits for its place."""
        self._collect()
        self._watch()
        return bool(self._ended) and self._may_pin(record)

    def side_inputs(self, work: SideWork) -> None:
        self._collect()
        if not self._ended or not self._may_pin(work.before):
            return
        room = self._room - sum(each.size for each in work.done.pinned)
        most, now = 1 if work.alone else len(work.done.pinned) + _MOST, self._tools.wall()
        pinned = list(work.done.pinned)
        for outcome in self._ended.values():
            if not self._book.awaits(outcome.call, outcome.id):
                self._taken.append(outcome.id)  # it was cancelled, or answered otherwise
                continue
            offset = self._book.next_offset(now)
            entry = outcome.pin(offset, int(now * 1000), self._book.key(outcome))
            room -= entry.size
            if len(pinned) >= most or self._engine.effects.crowded or (room < 0 and pinned):
                break
            message = PinnedMessage(self._place.names.control, self._place.partition, entry)
            self._taken.append(outcome.id)
            self._engine.obey(message)
            work.send(message)
            pinned.append(entry)
        work.done = work.done._replace(pinned=tuple(pinned))

    def contribute(self, draft: CommitDraft) -> None:
        draft.new_calls, draft.cancelled_calls = self._book.take()
        self._resolved, self._book.resolved = self._book.resolved, []
        self._committing = len(draft.new_calls)
        self._watch()

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        self._committing = 0
        for resolved in self._resolved:
            what, ids = resolved.what, ", ".join(resolved.ids[:_NAMED])
            self._tools.log.info(
                "calls_resolved", command=what, number=len(resolved.ids), ids=ids, who=resolved.who, why=resolved.why
            )
        self._resolved.clear()
        for each in (*self._taken, *draft.cancelled_calls):
            self._ended.pop(each, None)
            self._jobs.pop(each, None)
            self._began.pop(each, None)
        if self._taken:
            self._tools.metrics.inc(metrics.CALLS_ENDED, len(self._taken))
        elif draft.side.pinned:
            self._forget_repeated(draft.side.pinned)
        self._taken.clear()
        cancelled = set(draft.cancelled_calls)
        self._submit([job for job in draft.new_calls if job.id not in cancelled])
        if cancelled:
            self._runner.drop(draft.cancelled_calls)

    def _forget_repeated(self, pinned: Sequence[Pinned]) -> None:
        """Make calls no more whose answers a sinks' database has named: this transaction has repeated them."""
        repeated = [each for each in ids_answered(pinned) if each in self._jobs]
        for each in repeated:
            self._jobs.pop(each)
            self._ended.pop(each, None)
            self._began.pop(each, None)
        if repeated:
            self._runner.drop(repeated)

    def rolled_back(self) -> None:
        self._committing = 0
        self._resolved.clear()
        self._taken.clear()  # their answers come again, at another place

    def finish(self, record: CommitRecord, wait: float) -> bool:
        self._runner.close(wait)
        self._collect()
        return bool(self._ended) and self._may_pin(record)

    def close(self) -> None:
        self._runner.close(0.0)

    def _submit(self, jobs: list[CallJob]) -> None:
        if jobs:
            self._jobs.update((job.id, job) for job in jobs)
            self._began.update(dict.fromkeys((job.id for job in jobs), self._tools.clock()))
            self._runner.submit(jobs)
        self._count()

    def _collect(self) -> None:
        """Take over what ended; an answer to a call that waits for none is dropped (rule Q2)."""
        for outcome in self._runner.finished():
            if outcome.id in self._jobs:
                self._ended.setdefault(outcome.id, outcome)
                began = self._began.pop(outcome.id, None)
                if began is not None:
                    self._tools.metrics.observe(metrics.CALL_SECONDS, self._tools.clock() - began, outcome.call)

    def _count(self) -> None:
        oldest = next(iter(self._jobs.values())).time if self._jobs else 0
        self.pending = Pending(len(self._jobs), 0, oldest)
        self.dead = sum(len(table.stored) for table in self._book.tables.values()) - len(self._jobs)

    def _watch(self) -> None:
        """Name a function that blocks the event loop, once until the loop turns again."""
        stack = self._runner.blocked()
        if stack and not self._blocked:
            self._tools.log.warning("calls_block_the_loop", stack=stack)
        self._blocked = bool(stack)

    def _may_pin(self, record: CommitRecord) -> bool:
        """Return whether answers may change the state now: not while it is paused, as for records."""
        return record.paused is None and self._format.allows(record)


def _outage(tools: Tools, call: str, error: str) -> None:
    """Log the begin or the end of an outage of the other system; as `_attempt_failed`."""
    if error:
        tools.log.warning("calls_outage", call=call, cause=error)
    else:
        tools.log.info("calls_outage_over", call=call)


def _attempt_failed(tools: Tools, job: CallJob, error: BaseException, attempt: int, last: bool) -> None:
    """Count and log a failed attempt. Not a method, because the runner's thread must not keep a dropped state."""
    tools.metrics.inc(metrics.CALL_FAILURES)
    tools.log.warning("call_failed", call=job.call, id=job.id, attempt=attempt, last=last, cause=stored_text(error))
