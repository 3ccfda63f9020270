"""Roll back uncommitted work: abort in Kafka, set memory back to the last commit (rules T4, T5)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from statehold.api.record import Message
from statehold.errors import (
    KafkaTrouble,
    OutcomeUnknown,
    ProducerFenced,
    StateholdError,
    TransactionAborted,
    UnstorableValue,
)
from statehold.telemetry import metrics
from statehold.worker.common.context import Tools
from statehold.worker.common.errors import ProducerDropped, fenced, output_refused
from statehold.worker.common.ownership import await_newer_membership
from statehold.worker.common.signals import Signals
from statehold.worker.failures.decisions import FailureDecisions
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import HandlingFailed, require_storable
from statehold.worker.transaction.kafka_transaction import Stage
from statehold.worker.transaction.participants import ParticipantFailed, Participants
from statehold.worker.transaction.state import TransactionState

#: aborts in a row, without a commit between, after which the partition fails
_ABORTS: Final = 10
#: seconds before an aborted transaction is retried; they double with each abort, up to the second figure. After a
#: stale membership the first pause is short, because the manager fetches a new one meanwhile.
_PAUSE: Final = 0.05, 5.0
_STALE_PAUSE: Final = 0.01, 1.0


class Rollback:
    """Used by the partition's thread."""

    def __init__(
        self,
        tools: Tools,
        signals: Signals,
        engine: Engine,
        state: TransactionState,
        participants: Participants,
        decisions: Callable[[], FailureDecisions],
    ) -> None:
        self._tools, self._signals, self._engine = tools, signals, engine
        self._state, self._participants, self._decisions = state, participants, decisions
        #: what the last commit could not store
        self.unstorable: UnstorableValue | None = None
        #: number of the last transaction before a search for its writer that has found none yet
        self._searched_after = -1

    def undo(self) -> int:
        """Abort, then forget; return how many records will be handled again.

        :raises ProducerDropped: how the abort ended is unknown. :raises Fenced: :raises Lost:
        """
        kafka = self._state.kafka
        try:
            # After a lost connection the producer is replaced anyway, and an abort over it may end the process by an
            # assertion of librdkafka (in its handling of AddPartitionsToTxn).
            kafka.require_clean()
            kafka.abort()
            self._tools.metrics.inc(metrics.TRANSACTIONS, 1, "aborted")
            # After a torn connection an abort may end another transaction: only the last commit record shows (rule T4).
            kafka.require_clean()
        except ProducerFenced as error:
            raise self.fenced(error) from error
        except (OutcomeUnknown, TransactionAborted) as error:
            raise ProducerDropped(f"the abort's outcome is unknown: {error}") from error
        return self.forget()

    def forget(self) -> int:
        """Set memory back to the last commit; return how many records will be handled again."""
        state = self._state
        state.commit, state.handler_seconds = None, 0.0
        state.waiting, state.outputs = [], 0
        self._engine.rollback()
        state.policy.close()
        state.reached = max(state.reached, state.position)
        state.position = state.kafka.position
        count = state.buffer.roll_back()
        for rolled_back in self._participants.on_rolled_back:
            rolled_back()
        return count

    def after_abort(self, error: TransactionAborted) -> None:
        """Roll back a transaction that Kafka aborted, and pause before its records are handled again.

        :raises OutputRefused: too many aborts in a row. Otherwise as `undo`.
        """
        state = self._state
        state.aborts += 1
        count = self.undo()
        # A stale membership is a rebalance of the group: part of normal operation, and no fault.
        report = self._tools.log.info if error.stale else self._tools.log.warning
        cause = f"the group has rebalanced: {error}" if error.stale else str(error)
        report("rolled_back", cause=cause, records=count, position=state.position)
        if error.stale:
            await_newer_membership(self._tools, self._signals, state.membership)
        elif state.aborts > _ABORTS:
            raise output_refused(
                self._tools.place,
                f"commit: {state.aborts} transactions in a row were aborted, the last one because {error}",
                state.position,
            )
        first, longest = _STALE_PAUSE if error.stale else _PAUSE
        self._signals.pause(min(first * 2**state.aborts, longest))

    def after_unstorable(self, error: UnstorableValue) -> None:
        """Roll back; records and side inputs are handled again one by one, each followed by `require_storable`.

        :raises UnstorableValue: none of them has written it.
        """
        last, before = self._state.kafka.record.n, self._searched_after
        self._searched_after = last
        if not error.table or not (self._state.buffer.suspect() or last != before):
            raise error
        self.unstorable = error
        self.undo()

    @property
    def searching(self) -> bool:
        """Return whether the side inputs of the next commit are checked, because no record may have written it."""
        return self._searched_after == self._state.kafka.record.n

    def require_storable(self, message: Message) -> None:
        """:raises HandlingFailed: this record or side input has written what the last commit could not store."""
        assert self.unstorable is not None
        try:
            require_storable(self._engine.state.tables, self.unstorable, message)
        except HandlingFailed:
            self._searched_after = -1
            raise

    def after_participant(self, failure: ParticipantFailed) -> None:
        """Roll back a transaction that a participant refused before its commit; then that participant recovers."""
        state = self._state
        assert state.commit is not None
        blamed = failure.participant.failed(failure.error, state.commit.draft)
        if blamed is not None:
            self._decisions().failed(blamed)
            state.buffer.fail_at(blamed)
        count = self.undo()
        self._tools.log.warning("rolled_back", cause=str(failure), records=count, position=state.position)
        failure.participant.recover(state.kafka.record)

    def abandon(self) -> None:
        """Abort the open transaction before the partition fails, because readers would wait for its timeout."""
        kafka, commit = self._state.kafka, self._state.commit
        with suppress(Exception):  # its error is reported already
            if commit is not None:
                commit.call.wait()
                kafka.committed()
        try:
            kafka.require_clean()  # as in `undo`; the retry's fence then ends the transaction
            kafka.abort()
        except (KafkaTrouble, ProducerDropped) as error:
            self._tools.log.warning("kafka_retry", doing="abort before failing", cause=str(error))

    def fenced(self, error: StateholdError) -> Exception:
        """Return the error for a producer that was fenced: by another owner, or by the broker's transaction timeout."""
        kafka, limit = self._state.kafka, self._tools.settings.commit.transaction_timeout
        seconds = self._tools.clock() - kafka.began
        if self._signals.lost() or kafka.stage is Stage.CLOSED or seconds < limit:
            self._tools.metrics.inc(metrics.TRANSACTIONS, 1, "fenced")
            return fenced(self._tools.place, error, kafka.position, lost=self._signals.lost())
        self._state.hold_outputs = True
        self._tools.metrics.inc(metrics.TRANSACTIONS, 1, "unknown")
        return ProducerDropped(
            f"open for {seconds:.1f} s, longer than commit.transaction_timeout ({limit:g} s), so the broker ended it: "
            f"{error}. Its records are handled again without an open transaction"
        )
