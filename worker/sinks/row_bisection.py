"""Whose row it is that the database of the sinks refuses: smaller and smaller transactions tell.

A row is refused when its transaction commits, and not while its record is handled. So the transaction is handled again
in halves, each of which commits or is refused in turn, until one record or one command is left alone. What it was alone
with it stays alone with until it has committed, as a letter or after another try.
"""

from __future__ import annotations

from statehold.messages.command import command_of
from statehold.messages.dead_letter import REQUESTS
from statehold.messages.pinned_command import Pinned, PinnedMessage
from statehold.sink import BadRow
from statehold.snapshot.format.records import Mark
from statehold.worker.common.context import Tools
from statehold.worker.failures.decisions import Failing
from statehold.worker.handler.record_failure import Poisoned
from statehold.worker.sinks.coordinator import refused
from statehold.worker.transaction.commit_contents import Flight
from statehold.worker.transaction.policy import CommitPolicy


class Suspects:
    """Of one live partition; used by its thread."""

    def __init__(self, tools: Tools, policy: CommitPolicy, failing: Failing) -> None:
        self._place, self._policy, self._failing = tools.place, policy, failing
        #: records below this offset are handled in small transactions, and their commands wait
        self._until = -1
        #: entries of the control topic below this offset are obeyed one at a time, before any record
        self._commands = -1

    @property
    def active(self) -> bool:
        """One transaction at a time, and in none of them both records and a command."""
        return self._until >= 0 or self._commands >= 0

    @property
    def commands_first(self) -> bool:
        return self._commands >= 0

    def blame(self, flight: Flight, start: int, error: BadRow) -> Poisoned | None:
        """The record that put it; None: it is not known yet, or a letter that is told so when it comes again.

        `start`: where the transaction began. :raises SinkRefused: the handler has no policies, or it was neither a
        record nor a letter.
        """
        closing, pinned = flight.closing, flight.closing.pinned
        if not self._failing.has_policies or not (flight.records or pinned):
            raise refused(self._place, error, start) from error
        if pinned and (flight.records or len(pinned) > 1):
            self._commands = closing.control
        elif pinned:
            self._judge(pinned[0], closing.position, error)
        else:
            self._until, self._policy.limit = closing.position, max(1, flight.records // 2)
            if flight.records == 1:
                return self._poisoned(closing.position - 1, error)
        return None

    def committed(self, mark: Mark) -> None:
        if mark.positions.get(self._place.names.control, 0) >= self._commands:
            self._commands = -1
        if mark.positions[self._place.input] >= self._until:
            self._until, self._policy.limit = -1, 0

    def _judge(self, pinned: Pinned, position: int, error: BadRow) -> None:
        message = PinnedMessage(self._place.names.control, self._place.partition, pinned)
        command = command_of(message)
        if command is None or command.name not in REQUESTS:
            raise refused(self._place, error, position) from error
        self._failing.judge((self._place.names.control, pinned.offset), self._poisoned(position, error))

    def _poisoned(self, offset: int, error: BadRow) -> Poisoned:
        failed = refused(self._place, error, offset)
        failed.__cause__ = error
        return Poisoned(offset, failed)
