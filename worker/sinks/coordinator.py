"""The database of a partition's sinks: its epoch, its position, and what it holds that Kafka does not (docs/sinks.md).

The database commits just before Kafka does. If Kafka then does not commit, the database is *ahead*, by one transaction
at most: its records are handled again, up to the same place and with the same commands and failure decisions, and what
they put goes nowhere. The state at that place must be the one that the rows were written with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import tenacity

from statehold.errors import (
    NonDeterministicReplay,
    PartitionError,
    SinkDisagrees,
    SinkFenced,
    SinkUnreachable,
)
from statehold.messages.pinned_command import PinnedMessage
from statehold.ports import Cancelled
from statehold.sink import BadRow, DatabaseTrouble, Outdated, Rows, RowsRefused, Session, SinkPosition
from statehold.snapshot.format import digest
from statehold.snapshot.format.records import CommitRecord
from statehold.telemetry import metrics
from statehold.telemetry.log_events import Log
from statehold.worker.common.context import Tools
from statehold.worker.common.signals import Signals
from statehold.worker.failures.decisions import FailureDecisions
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import HandlingFailed
from statehold.worker.sinks.position import Disagreement, Note, ahead_of, encode
from statehold.worker.sinks.row_bisection import RowBisection, refused
from statehold.worker.transaction.participants import CommitDraft, Participant, ParticipantFailed, SideWork
from statehold.worker.transaction.state import TransactionState

_LONGEST_WAIT: Final = 5.0


class SinkCoordinator(Participant):
    """Of one live partition; used by its thread, `before_commit` by the commit's thread."""

    def __init__(
        self, tools: Tools, signals: Signals, engine: Engine, state: TransactionState, decisions: FailureDecisions
    ) -> None:
        self._tools, self._signals, self._engine, self._decisions = tools, signals, engine, decisions
        self._buffer = state.buffer
        self._bisection = RowBisection(tools, state, decisions)
        self._session: Session | None = None
        self._held = SinkPosition(0, -1)
        #: of the transaction in flight: the database has committed it
        self._written: Note | None = None
        #: the transaction in flight ends where the database is ahead to
        self._settles = False
        #: what was handled when the database committed and Kafka did not
        self.ahead: Note | None = None

    @property
    def barrier(self) -> int | None:
        """A transaction must end at this offset: the database is ahead up to it. None: it is not."""
        return None if self.ahead is None else self._held.position

    # Connecting

    def opened(self, record: CommitRecord) -> None:
        """Take the epoch; see whether the database is ahead of `record`, the last one.

        :raises Cancelled: the partition leaves. :raises SinkUnreachable: :raises SinkRefused: :raises SinkDisagrees:
        """
        try:
            self._open(record, again=False)
        except SinkUnreachable:
            if self._signals.leaving():
                raise Cancelled from None
            raise

    def recover(self, record: CommitRecord) -> None:
        """Connect again, with everything rolled back: the database's position says whether it has committed.

        :raises SinkFenced: another owner has taken an epoch. Otherwise as `opened`.
        """
        self._open(record, again=True)

    def _open(self, mark: CommitRecord, *, again: bool) -> None:
        clock, signals = self._tools.clock, self._signals
        until = clock() + self._tools.settings.sink.outage
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(DatabaseTrouble),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=_LONGEST_WAIT),
            # With a signal set no pause would last: the partition leaves, fails, or begins anew.
            stop=lambda _: signals.any.is_set() or clock() >= until,
            # tenacity keeps these in a cycle as long as this thread lives: no method, which has the state.
            sleep=partial(_pause, signals),
            before_sleep=partial(_tell, self._tools.log),
            reraise=True,
        )
        try:
            held = retrying(self._take, again=again)
        except DatabaseTrouble as error:
            raise self._failed(SinkUnreachable, f"the database of the sinks: {error}", mark) from error
        except Outdated as error:
            raise self._fenced(error, mark) from error
        except RowsRefused as error:
            raise refused(self._tools.place, error, mark.positions[self._tools.place.input]) from error
        try:
            self.ahead = ahead_of(held, mark, self._tools.place.names)
        except Disagreement as error:
            raise self._disagrees(str(error), mark) from error
        self._held, self._written = held or SinkPosition(0, -1), None
        self._adopt()
        self._tools.log.info("sink_open", epoch=self._held.epoch, position=self._held.position, ahead=self.barrier)

    def _take(self, *, again: bool) -> SinkPosition | None:
        self.close()
        assert self._tools.database is not None
        session = self._session = self._tools.database(self._tools.place.partition, self._hurried)
        try:
            return session.take(again=again)
        except BaseException:
            self.close()
            raise

    def _hurried(self) -> bool:
        """No call may take longer: what it would be for is lost."""
        signals = self._signals
        return signals.lost() or (signals.leaving() and self._tools.clock() >= signals.deadline)

    def _adopt(self) -> None:
        """While the database is ahead, what the handler puts goes nowhere, and what had failed fails alike."""
        self._engine.sinks.mute(self.ahead is not None)
        self._buffer.barrier = self.barrier
        self._decisions.handled_until = -1 if self.barrier is None else self.barrier
        if self.ahead is not None and self._engine.letters is not None:
            self._engine.letters.decisions.update(
                {(topic, at): decision for topic, at, decision in self.ahead.decisions}
            )

    # A transaction

    def side_inputs(self, work: SideWork) -> None:
        """Repeat what was handled when the database committed and Kafka did not; search for a rejected row."""
        if self.ahead is None:
            if self._bisection.active:
                work.closed, work.alone = not work.idle, True
            return
        work.closed = True
        if work.position < self._held.position:
            return
        place = self._tools.place
        for pinned in self.ahead.side.pinned:
            self._engine.obey(PinnedMessage(place.names.control, place.partition, pinned))
        work.send()
        work.done = self.ahead.side

    def contribute(self, draft: CommitDraft) -> None:
        """Write the transaction's rows just before Kafka commits.

        :raises NonDeterministicReplay: the database has rows that another state has led to.
        """
        rows, state = self._engine.sinks.take(), digest.to_bytes(draft.frozen.digest)
        if self.ahead is not None:
            self._settles = draft.position >= self._held.position and draft.side is self.ahead.side
            if self._settles and self.ahead.digest not in (b"", state):
                raise self._differs(state, self.ahead.digest, draft.before)
        elif draft.position != self._held.position or rows is not None or draft.side.pinned:
            letters = self._engine.letters
            decisions = letters.decisions.items() if letters is not None else ()
            note = Note(draft.before.lineage, state, draft.side, tuple((*place, each) for place, each in decisions))
            draft.before_commit = partial(self._write, draft.position, note, rows or list, draft.before)

    def _write(self, position: int, note: Note, rows_of: Callable[[], Sequence[Rows]], mark: CommitRecord) -> None:
        began, session, meters = self._tools.clock(), self._session, self._tools.metrics
        if session is None:
            raise ParticipantFailed(self, DatabaseTrouble("not connected"))
        rows, packed = rows_of(), encode(note)
        try:
            session.commit(self._held, position, packed, rows)
        except Outdated as error:
            raise self._fenced(error, mark) from error
        except (BadRow, DatabaseTrouble) as error:
            self.close()
            raise ParticipantFailed(self, error) from error
        except RowsRefused as error:
            raise refused(self._tools.place, error, mark.positions[self._tools.place.input]) from error
        self._held, self._written = SinkPosition(self._held.epoch, position, packed), note
        meters.inc(metrics.SINK_ROWS, sum(len(each.puts) + len(each.deletes) for each in rows))
        meters.observe(metrics.SINK_SECONDS, self._tools.clock() - began)

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        """Kafka has committed, too."""
        if self._settles:
            self.ahead = None
        self._written, self._settles = None, False
        self._adopt()
        if self._bisection.active:
            self._bisection.committed(record)

    def failed(self, error: Exception, draft: CommitDraft) -> HandlingFailed | None:
        """:raises SinkRefused: the database rejects a row, and the handler says nothing of such failures."""
        return self._bisection.blame(draft, error) if isinstance(error, BadRow) else None

    def rolled_back(self) -> None:
        """Kafka has not committed, and memory is set back."""
        if self._written is not None:
            self.ahead = self._written
        self._written, self._settles = None, False
        self._adopt()

    def close(self) -> None:
        """Let go of the connection."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # Words

    def _failed(self, kind: type[PartitionError], why: str, mark: CommitRecord) -> PartitionError:
        place = self._tools.place
        return kind(why, topic=place.input, partition=place.partition, position=mark.positions[place.input])

    def _fenced(self, error: Outdated, mark: CommitRecord) -> PartitionError:
        self._tools.metrics.inc(metrics.SINK_REFUSED)
        if not error.fenced:
            return self._disagrees(str(error), mark)
        return self._failed(SinkFenced, f"{error}; what was not committed is thrown away", mark)

    def _disagrees(self, why: str, mark: CommitRecord) -> PartitionError:
        return self._failed(
            SinkDisagrees,
            f"the database of the sinks does not follow from the last mark: {why}. Nothing was written; `statehold "
            f"sink show MODULE:SERVICE` compares, `statehold sink init` makes it go on from the marks",
            mark,
        )

    def _differs(self, now: bytes, then: bytes, mark: CommitRecord) -> PartitionError:
        held = self._held.position
        return self._failed(
            NonDeterministicReplay,
            f"handling the records up to {held} again gave digest {digest.show(int.from_bytes(now, 'little'))}; their "
            f"rows were written beside {digest.show(int.from_bytes(then, 'little'))}: the handler depends on more than "
            f"its records and tables, or other code runs now. Run the code that wrote them, or see docs/sinks.md, then "
            f"`statehold retry {self._tools.place.partition}`",
            mark,
        )


def _pause(signals: Signals, seconds: float) -> None:
    signals.pause(seconds)


def _tell(log: Log, state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.warning("sink_retry", attempt=state.attempt_number, cause=str(error))
