"""What comes beside the input, at the end of a transaction: commands, ticks, and records whose retry is due."""

from __future__ import annotations

from functools import partial

from statehold.errors import MessageRefused
from statehold.messages.pinned_command import PinnedMessage
from statehold.worker.common.context import Tools
from statehold.worker.common.errors import refused
from statehold.worker.failures.decisions import Failing
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import Poisoned
from statehold.worker.participants.commands import Obeyed
from statehold.worker.sinks.position import Note
from statehold.worker.transaction.commit_contents import Riders
from statehold.worker.transaction.output_buffer import Outgoing
from statehold.worker.transaction.transaction import Committer


class Obeying:
    """Used by the partition's thread.

    What it handles it handles last, at the input's position, which the mark pins. Each method that handles something
    raises Poisoned when that fails: it fails the partition once what comes before this position is committed.
    """

    def __init__(self, tools: Tools, engine: Engine, riders: Riders, outgoing: Outgoing, failing: Failing) -> None:
        self._tools, self._engine, self._riders = tools, engine, riders
        self._outgoing, self._failing = outgoing, failing

    def hold(self) -> Obeyed:
        """Nothing of it now."""
        return self._riders.controlled.hold()._replace(retries=self._riders.retries.hold())

    def obey(self, committer: Committer, position: int, *, idle: bool, alone: bool) -> Obeyed:
        """All that is there, or with `alone` only the first; `idle`: the transaction has handled no record."""
        controlled, retries, mark = self._riders.controlled, self._riders.retries, committer.mark
        send = partial(self._send, committer, position)
        try:
            obeyed = controlled.obey(mark, self._failing, send, idle=idle, alone=alone)
            held = retries.waiting and not self._riders.may_retry(mark)
            return obeyed._replace(retries=retries.hold() if held else retries.take(self._failing, send))
        except Poisoned as poison:
            if poison.decided:
                raise
            raise Poisoned(position, poison.error, final=True) from poison

    def again(self, note: Note, committer: Committer, position: int) -> Obeyed:
        """What was obeyed here when the database committed and Kafka did not."""
        place = self._tools.place
        try:
            for pinned in note.obeyed.pinned:
                self._engine.obey(PinnedMessage(place.names.control, place.partition, pinned))
            self._send(committer, position)
        except Poisoned as poison:
            raise Poisoned(position, poison.error, final=True) from poison
        return note.obeyed

    def _send(self, committer: Committer, position: int) -> None:
        """What was handled last has sent something. :raises Poisoned: it is refused."""
        outputs = self._engine.take_outputs()
        if not outputs:
            return
        try:
            self._outgoing.take(outputs, committer, wait=False)
        except MessageRefused as error:
            what = "a command that came by the control topic, or of a record that was tried later,"
            said = f"an output of {what} was refused: {error}"
            failed = refused(self._tools.place, said, position)
            failed.__cause__ = error
            raise Poisoned(position, failed) from error
