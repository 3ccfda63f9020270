"""Find the record whose row the database of the sinks rejects.

A row is rejected when its transaction commits, not while its record is handled. The session finds the row, and the
records are handled again one by one until one of them puts it. Those before it are committed; then it is handled alone
until it has committed: as it is, as a dead letter, or after a retry. If the row is unknown, or no record puts it, the
transaction is handled again in halves, each of which commits or is rejected in turn, until one record or one command
is left.
"""

from __future__ import annotations

from collections.abc import Callable

from statehold.api.record import Message, at
from statehold.bound.sink import BadRow, RowsRefused, Sinks
from statehold.errors import SinkRefused
from statehold.messages.command import command_of
from statehold.messages.dead_letter import REQUESTS
from statehold.messages.pinned_command import Pinned, PinnedMessage
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.context import Tools
from statehold.worker.failures.decisions import FailureDecisions
from statehold.worker.handler.record_failure import HandlingFailed, RecordFailed, RecordUnknown
from statehold.worker.handler.time_slices import without_slices
from statehold.worker.sinks.row_search import (
    NoSearch,
    RecordFound,
    RowSearch,
    RowWanted,
    committed,
    rejected,
    require_edge,
)
from statehold.worker.transaction.participants import CommitDraft
from statehold.worker.transaction.state import TransactionState


class RowBisection:
    """The search of one live partition; used by its thread."""

    def __init__(self, tools: Tools, state: TransactionState, decisions: Callable[[], FailureDecisions]) -> None:
        self._place, self._policy, self._buffer, self._decisions = tools.place, state.policy, state.buffer, decisions
        #: the search among records
        self.stage: RowSearch = NoSearch()
        #: entries of the control topic below this offset are handled one at a time, before any record
        self._commands = -1

    @property
    def active(self) -> bool:
        """While active, one transaction at a time, with either records or a command."""
        return not isinstance(self.stage, NoSearch) or self._commands >= 0

    def blame(self, draft: CommitDraft, error: BadRow) -> HandlingFailed | None:
        """Return the failure of the record that put the row; None: it is unknown yet, or is a dead letter.

        :raises SinkRefused: the handler has no policies, or neither a record nor a dead letter put the row.
        """
        slices, pinned = without_slices(draft.side.pinned)
        # The record before which they were handed over is searched, too: in its transaction it is handled.
        records, position = draft.records + slices, draft.position + slices
        start = draft.before.position(self._place.input)
        if not self._decisions().has_policies or not (records or pinned):
            raise sink_refused(self._place, error, start) from error
        try:
            if pinned and (records or len(pinned) > 1):
                self._commands = draft.side.next
            elif pinned:
                self._blame_redriven(pinned[0], draft.position, error)
            else:
                self._enter(rejected(self.stage, position, records, error.row))
                if records == 1:
                    return self._failure(position - 1, error)
            return None
        finally:
            self._show()

    def handled(self, message: Message, sinks: Sinks) -> None:
        """End the search for the row's record at the one that has put it.

        :raises RecordUnknown: the records before it are to be handled again without it.
        """
        if not isinstance(self.stage, RowWanted) or not sinks.holds(self.stage.row):
            return
        before = self._policy.records - 1
        self._enter(self.stage.put_by(at(message), before))
        if before > 0:
            raise RecordUnknown

    def committed(self, record: CommitRecord, records: int) -> None:
        """End the search where everything in question has committed."""
        if record.positions.get(self._place.names.control, 0) >= self._commands:
            self._commands = -1
        following = committed(self.stage, record.position(self._place.input), records)
        if following != self.stage:
            self._enter(following)
        self._show()

    def _enter(self, following: RowSearch) -> None:
        """Go to the next stage, and have the records handled as it says."""
        require_edge(self.stage, following)
        if isinstance(following, RowWanted):
            self._buffer.careful_until = following.until
        elif isinstance(self.stage, RowWanted) and isinstance(following, RecordFound):
            self._buffer.careful_until = -1
        self.stage, self._policy.limit = following, following.limit

    def _show(self) -> None:
        self._buffer.bisecting = self.active
        self._buffer.side_inputs_first = self._commands >= 0

    def _blame_redriven(self, pinned: Pinned, position: int, error: BadRow) -> None:
        message = PinnedMessage(self._place.names.control, self._place.partition, pinned)
        command = command_of(message)
        if command is None or command.name not in REQUESTS:
            raise sink_refused(self._place, error, position) from error
        at = self._place.names.control, pinned.offset
        self._decisions().decide_redriven(at, self._failure(position, error))

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
