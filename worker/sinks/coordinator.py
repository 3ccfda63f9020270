"""Coordinates a partition's sink database with Kafka: epoch, position, database ahead (docs/how-to/write/sinks.md).

The database commits just before Kafka does. If Kafka then does not commit, the database is *ahead*, by one transaction
at most. Its records are then handled again, up to the same position and with the same commands and failure decisions,
and their rows are discarded. The state at that position must be the one that the rows were written with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
import tenacity

from statehold.api.record import Message
from statehold.bound.sink import BadRow, DatabaseTrouble, Outdated, Rows, RowsRefused, Session, SinkPosition
from statehold.errors import (
    NonDeterministicReplay,
    PartitionError,
    SinkDisagrees,
    SinkFenced,
    SinkUnreachable,
)
from statehold.messages.pinned_command import PinnedMessage
from statehold.ports import Cancelled
from statehold.snapshot.format.records import CommitRecord
from statehold.state import digest
from statehold.telemetry import metrics
from statehold.telemetry.log_events import Log
from statehold.worker.common.context import Tools
from statehold.worker.common.signals import Signals
from statehold.worker.failures.decisions import FailureDecisions
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import HandlingFailed
from statehold.worker.sinks.position import Disagreement, Note, ahead_of, encode
from statehold.worker.sinks.row_bisection import RowBisection, sink_refused
from statehold.worker.sinks.stages import Ahead, Disconnected, Even, SinkStage, Written, require_edge
from statehold.worker.transaction.participants import CommitDraft, Participant, ParticipantFailed, SideWork
from statehold.worker.transaction.state import TransactionState

_LONGEST_WAIT: Final = 5.0


class SinkCoordinator(Participant):
    """The sinks of one live partition; used by its thread, `before_commit` by the commit's thread."""

    def __init__(
        self,
        tools: Tools,
        signals: Signals,
        engine: Engine,
        state: TransactionState,
        decisions: Callable[[], FailureDecisions],
    ) -> None:
        self._tools, self._signals, self._engine, self._decisions = tools, signals, engine, decisions
        assert engine.sinks is not None
        self._sinks = engine.sinks
        self._buffer = state.buffer
        self._bisection = RowBisection(tools, state, decisions)
        self.stage: SinkStage = Disconnected(SinkPosition(0, -1))
        #: the engine has the time limit of the transaction that only the database committed
        self._repeats_limit = False

    def _enter(self, following: SinkStage) -> None:
        require_edge(self.stage, following)
        self.stage = following

    # Connecting

    def opened(self, record: CommitRecord) -> None:
        """Take the epoch; check whether the database is ahead of `record`, the last one.

        :raises Cancelled: the partition leaves. :raises SinkUnreachable: :raises SinkRefused: :raises SinkDisagrees:
        """
        try:
            self._open(record, again=False)
        except SinkUnreachable:
            if self._signals.leaving():
                raise Cancelled from None
            raise

    def recover(self, record: CommitRecord) -> None:
        """Connect again after a rollback: the database's position shows whether it has committed.

        After a rejected row the connection is still open, and nothing has committed.

        :raises SinkFenced: another owner has taken an epoch. Otherwise as `opened`.
        """
        if isinstance(self.stage, Disconnected):
            self._open(record, again=True)

    def _open(self, record: CommitRecord, *, again: bool) -> None:
        clock, signals = self._tools.clock, self._signals
        until = clock() + self._tools.settings.sink.outage
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(DatabaseTrouble),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=_LONGEST_WAIT),
            # A set signal ends each pause at once: the partition leaves, fails, or starts again.
            stop=lambda _: signals.any.is_set() or clock() >= until,
            # No methods, because tenacity keeps these in a cycle while this thread lives, and a method has the state.
            sleep=partial(_pause, signals),
            before_sleep=partial(_log_retry, self._tools.log),
            reraise=True,
        )
        try:
            session, held = retrying(self._take, again=again)
        except DatabaseTrouble as error:
            raise self._failed(SinkUnreachable, f"connect to the database of the sinks: {error}", record) from error
        except Outdated as error:
            raise self._fenced(error, record) from error
        except RowsRefused as error:
            raise sink_refused(self._tools.place, error, record.position(self._tools.place.input)) from error
        try:
            note = ahead_of(held, record, self._tools.place.names)
        except Disagreement as error:
            session.close()
            raise (self._disagrees(str(error), record) if held else self._unprepared(record)) from error
        assert held is not None
        self._enter(Even(held, session) if note is None else Ahead(held, session, note))
        self._follow_database()
        barrier = None if note is None else held.position
        self._tools.log.info("sink_open", epoch=held.epoch, position=held.position, ahead=barrier)

    def _take(self, *, again: bool) -> tuple[Session, SinkPosition | None]:
        assert self._tools.database is not None
        session = self._tools.database(self._tools.place.partition, self._hurried)
        try:
            return session, session.take(again=again)
        except BaseException:
            session.close()
            raise

    def _hurried(self) -> bool:
        """Return whether calls must end now, because the partition is lost or its deadline has passed."""
        signals = self._signals
        return signals.lost() or (signals.leaving() and self._tools.clock() >= signals.deadline)

    def _follow_database(self) -> None:
        """While the database is ahead, repeat its failure decisions; `contribute` discards the rows."""
        buffer, decisions = self._buffer, self._decisions()
        if not isinstance(self.stage, Ahead):
            buffer.barrier, buffer.turns, decisions.handled_until = None, (), -1
            if self._repeats_limit:
                self._repeats_limit = False
                self._engine.limit_time(None)
            return
        position, note = self.stage.held.position, self.stage.note
        buffer.barrier = position
        buffer.turns = note.turns
        self._repeats_limit = True
        self._engine.limit_time(note.time_limit)
        decisions.handled_until = position
        decisions.repeat({(topic, at): decision for topic, at, decision in note.decisions})

    # A transaction

    def side_inputs(self, work: SideWork) -> None:
        """Repeat the side inputs of a transaction that only the database committed; bisect for a rejected row."""
        stage = self.stage
        if not isinstance(stage, Ahead):
            if self._bisection.active:
                work.closed, work.alone = not work.idle, True
            return
        work.closed = True
        if work.position < stage.held.position:
            return
        place = self._tools.place
        for pinned in stage.note.side.pinned:
            message = PinnedMessage(place.names.control, place.partition, pinned)
            self._engine.obey(message)
            work.send(message)
        work.done = stage.note.side

    def handled(self, message: Message) -> None:
        """:raises RecordUnknown: the rejected row is this record's."""
        self._bisection.handled(message, self._sinks)

    def contribute(self, draft: CommitDraft) -> None:
        """Write the transaction's rows just before Kafka commits.

        :raises NonDeterministicReplay: another state led to the rows in the database.
        """
        rows, state, stage = self._sinks.take(), digest.to_bytes(draft.frozen.digest), self.stage
        if isinstance(stage, Ahead):
            draft.time_limit = stage.note.time_limit
            if stage.ends_with(draft.position, draft.side) and stage.note.digest not in (b"", state):
                raise self._differs(state, stage, draft.before)
        elif draft.position != stage.held.position or rows is not None or draft.side.pinned:
            dead_letters = self._engine.dead_letters
            decisions = dead_letters.decisions.items() if dead_letters is not None else ()
            note = Note(draft.before.lineage, state, draft.side, tuple((*place, each) for place, each in decisions))
            if draft.before.inputs:
                positions, order = self._buffer.order(draft.before)
                note = msgspec.structs.replace(note, inputs=tuple(positions), order=order)
            if draft.time_limit:
                note = msgspec.structs.replace(note, time_limit=draft.time_limit)
            draft.before_commit = partial(self._write, draft.position, note, rows or list, draft.before)

    def _write(self, position: int, note: Note, rows_of: Callable[[], Sequence[Rows]], record: CommitRecord) -> None:
        began, stage, meters = self._tools.clock(), self.stage, self._tools.metrics
        if not isinstance(stage, Even):
            raise ParticipantFailed(self, DatabaseTrouble("not connected"))
        rows, packed = rows_of(), encode(note)
        try:
            stage.session.commit(stage.held, position, packed, rows)
        except Outdated as error:
            self.close()
            raise self._fenced(error, record) from error
        except BadRow as error:
            raise ParticipantFailed(self, error) from error
        except DatabaseTrouble as error:
            self.close()
            raise ParticipantFailed(self, error) from error
        except RowsRefused as error:
            raise sink_refused(self._tools.place, error, record.position(self._tools.place.input)) from error
        if self.stage is stage:  # because the partition may have been released meanwhile
            self._enter(Written(SinkPosition(stage.held.epoch, position, packed), stage.session, note))
        meters.inc(metrics.SINK_ROWS, sum(len(each.puts) + len(each.deletes) for each in rows))
        meters.observe(metrics.SINK_SECONDS, self._tools.clock() - began)

    def committed(self, record: CommitRecord, draft: CommitDraft) -> None:
        """Kafka has committed the transaction, too."""
        match self.stage:
            case Written(held, session):
                self._enter(Even(held, session))
            case Ahead(held, session) as ahead if ahead.ends_with(draft.position, draft.side):
                self._enter(Even(held, session))
        self._follow_database()
        if self._bisection.active:
            self._bisection.committed(record, draft.records)

    def failed(self, error: Exception, draft: CommitDraft) -> HandlingFailed | None:
        """:raises SinkRefused: the database rejects a row, and the handler has no policy for such failures."""
        return self._bisection.blame(draft, error) if isinstance(error, BadRow) else None

    def rolled_back(self) -> None:
        """Kafka has not committed, and memory is rolled back."""
        if isinstance(self.stage, Written):
            self._enter(Ahead(self.stage.held, self.stage.session, self.stage.note))
        self._follow_database()

    def close(self) -> None:
        """Close the connection."""
        stage = self.stage
        if not isinstance(stage, Disconnected):
            self._enter(Disconnected(stage.held))
            stage.session.close()

    # Errors

    def _failed(self, kind: type[PartitionError], why: str, record: CommitRecord) -> PartitionError:
        place = self._tools.place
        return kind(why, topic=place.input, partition=place.partition, position=record.position(place.input))

    def _fenced(self, error: Outdated, record: CommitRecord) -> PartitionError:
        self._tools.metrics.inc(metrics.SINK_REJECTED)
        if not error.fenced:
            return self._disagrees(str(error), record)
        return self._failed(
            SinkFenced,
            f"commit to the database of the sinks: {error}. Uncommitted work is rolled back; the new owner repeats it",
            record,
        )

    def _disagrees(self, why: str, record: CommitRecord) -> PartitionError:
        return self._failed(
            SinkDisagrees,
            f"the database of the sinks does not follow from the last commit record: {why}. Nothing was written. Next: "
            f"run `statehold sink show MODULE:SERVICE`, which compares them. When the rows are right, `statehold sink "
            f"init MODULE:SERVICE --adopt` makes the positions follow the commit records",
            record,
        )

    def _unprepared(self, record: CommitRecord) -> PartitionError:
        """Return the error for a database on which `statehold sink init` did not run."""
        table, partition = self._tools.settings.sink.table, self._tools.place.partition
        return self._failed(
            SinkDisagrees,
            f"the database of the sinks holds no position of this partition in its table {table}. Nothing was written. "
            f"Next: run `statehold sink init MODULE:SERVICE`, as before each first start, then `statehold retry "
            f"{partition}`; if the service wrote rows before, it has another database now: correct sink.url instead",
            record,
        )

    def _differs(self, now: bytes, ahead: Ahead, record: CommitRecord) -> PartitionError:
        held, then = ahead.held.position, ahead.note.digest
        return self._failed(
            NonDeterministicReplay,
            f"handle the records up to {held} again: the digest is {digest.show(int.from_bytes(now, 'little'))}, but "
            f"their rows were written with {digest.show(int.from_bytes(then, 'little'))}; the handler depends on more "
            f"than its records and tables, or the code has changed. Nothing was written. Next: run the code that wrote "
            f"the rows, then `statehold retry {self._tools.place.partition}`; see NonDeterministicReplay in the "
            f"runbook",
            record,
        )


def _pause(signals: Signals, seconds: float) -> None:
    signals.pause(seconds)


def _log_retry(log: Log, state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.warning("sink_retry", attempt=state.attempt_number, cause=str(error))
