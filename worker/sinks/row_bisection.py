"""Find the record whose row the database of the sinks rejects.

A row is rejected when its transaction commits, not while its record is handled. The session finds the row, and the
records are handled again one by one until one of them puts it. Those before it are committed; then it is handled alone
until it has committed: as it is, as a dead letter, or after a retry. If the row is unknown, or no record puts it, the
transaction is handled again in halves, each of which commits or is rejected in turn, until one record or one command
is left.
"""

from __future__ import annotations

from statehold.api.record import Message, at
from statehold.bound.sink import BadRow, Rows, RowsRefused, Sinks
from statehold.errors import SinkRefused
from statehold.messages.command import command_of
from statehold.messages.dead_letter import REQUESTS
from statehold.messages.pinned_command import Pinned, PinnedMessage
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.context import Tools
from statehold.worker.failures.decisions import FailureDecisions
from statehold.worker.handler.record_failure import HandlingFailed, RecordFailed, RecordUnknown
from statehold.worker.transaction.participants import CommitDraft
from statehold.worker.transaction.state import TransactionState


class RowBisection:
    """The search of one live partition; used by its thread."""

    def __init__(self, tools: Tools, state: TransactionState, decisions: FailureDecisions) -> None:
        self._place, self._policy, self._buffer, self._decisions = tools.place, state.policy, state.buffer, decisions
        #: records below this offset are handled in small transactions, and their commands wait
        self._until = -1
        #: the rejected row, while the records are handled one by one
        self._row: Rows | None = None
        #: number of records to commit before the one that put it is handled alone
        self._before = 0
        #: entries of the control topic below this offset are handled one at a time, before any record
        self._commands = -1

    @property
    def active(self) -> bool:
        """While active, one transaction at a time, with either records or a command."""
        return self._until >= 0 or self._commands >= 0

    def blame(self, draft: CommitDraft, error: BadRow) -> HandlingFailed | None:
        """Return the failure of the record that put the row; None: it is unknown yet, or is a dead letter.

        :raises SinkRefused: the handler has no policies, or neither a record nor a dead letter put the row.
        """
        pinned, start = draft.side.pinned, draft.before.position(self._place.input)
        if not self._decisions.has_policies or not (draft.records or pinned):
            raise sink_refused(self._place, error, start) from error
        try:
            if pinned and (draft.records or len(pinned) > 1):
                self._commands = draft.side.next
            elif pinned:
                self._blame_redriven(pinned[0], draft.position, error)
            else:
                self._row = error.row if self._until < 0 and draft.records > 1 else None
                self._until, self._before = draft.position, 0
                self._policy.limit = 0 if self._row is not None else max(1, draft.records // 2)
                if self._row is not None:
                    self._buffer.careful_until = draft.position
                if draft.records == 1:
                    return self._failure(draft.position - 1, error)
            return None
        finally:
            self._show()

    def handled(self, message: Message, sinks: Sinks) -> None:
        """End the search for the row's record at the one that has put it.

        :raises RecordUnknown: the records before it are to be handled again without it.
        """
        if self._row is None or not sinks.holds(self._row):
            return
        self._row, self._until, self._buffer.careful_until = None, at(message) + 1, -1
        self._before = self._policy.records - 1
        self._policy.limit = max(1, self._before)
        if self._before > 0:
            raise RecordUnknown

    def committed(self, record: CommitRecord, records: int) -> None:
        """End the search where everything in question has committed."""
        if record.positions.get(self._place.names.control, 0) >= self._commands:
            self._commands = -1
        if record.position(self._place.input) >= self._until:
            self._until, self._row, self._before, self._policy.limit = -1, None, 0, 0
        elif self._before > 0:
            self._before = max(0, self._before - records)
            self._policy.limit = max(1, self._before)
        self._show()

    def _show(self) -> None:
        self._buffer.bisecting = self.active
        self._buffer.side_inputs_first = self._commands >= 0

    def _blame_redriven(self, pinned: Pinned, position: int, error: BadRow) -> None:
        message = PinnedMessage(self._place.names.control, self._place.partition, pinned)
        command = command_of(message)
        if command is None or command.name not in REQUESTS:
            raise sink_refused(self._place, error, position) from error
        at = self._place.names.control, pinned.offset
        self._decisions.decide_redriven(at, self._failure(position, error))

    def _failure(self, offset: int, error: BadRow) -> HandlingFailed:
        failed = sink_refused(self._place, error, offset)
        failed.__cause__ = error
        return RecordFailed(offset, failed)


def sink_refused(place: Place, error: RowsRefused, position: int) -> SinkRefused:
    """Return the error for rows that the database rejects; their record is at this position or, unsearched, later."""
    return SinkRefused(
        f"write rows: the database of the sinks rejects the rows of the records from here on: {error}. Nothing was "
        f"skipped. Next: fix the table or the handler, then `statehold retry {place.partition}`",
        topic=place.input,
        partition=place.partition,
        position=position,
    )
