"""Obey the commands of the control topic, and pin them in the next commit record.

The worker takes them when a transaction closes and no commit is in flight, and handles them after its last record. The
commit record of the same transaction acknowledges and pins them; after a rollback they are taken again (docs/design.md,
"Pinned commands and ticks").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from statehold.api.handler import Handler
from statehold.messages.call_outcome import CALL_REQUESTS
from statehold.messages.command import FINISH_UPGRADE, PAUSE, SWITCHES, Command
from statehold.messages.dead_letter import REQUESTS, AddRequest
from statehold.messages.pinned_command import Pinned, PinnedMessage
from statehold.ports import Asked, Control
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord
from statehold.worker.common.context import Tools
from statehold.worker.failures.decisions import FailureDecisions
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import FailureDecided, HandlingFailed
from statehold.worker.transaction.participants import Participant, SideInputs, SideWork

#: why a command changed nothing
_NO_DEAD_LETTER: Final = (
    "an older dead letter comes first, this one is resolved, or the handler declares no dead_letter policy. Next: "
    "`statehold dlq list`"
)
_NO_CALL: Final = "none of these calls is in the state, or none is dead. Next: `statehold calls list`"
#: most users' commands in one transaction, because each may take as long as a record
_MOST: Final = 100


class ControlCommands(Participant):
    """Used by the partition's thread, during one live phase."""

    def __init__(
        self, tools: Tools, engine: Engine, control: Control, decisions: Callable[[], FailureDecisions]
    ) -> None:
        self._tools, self._engine, self._control, self._decisions = tools, engine, control, decisions
        self._topic = tools.place.names.control
        self._has_on_command = type(engine.handler).on_command is not Handler.on_command
        #: bytes of pinned commands, because a commit record contains them and must fit a message
        self._room = tools.settings.kafka.message_max_bytes // 2

    def wants_commit(self, record: CommitRecord, now: float) -> bool:
        """Return whether a command waits that no commit record contains yet."""
        asked, _ = self._control.waiting(record.positions.get(self._topic, 0))
        position = record.position(self._tools.place.input)
        return len(asked) > 0 and not _precedes(asked[0], position, paused=record.paused is not None)

    def side_inputs(self, work: SideWork) -> None:
        asked, end = self._control.waiting(work.done.next)
        if work.inside or (not asked and end == work.done.next):
            return
        asked, end = self._until_dead_letter(asked, end, work)
        most = 1 if work.alone else _MOST
        commands: list[Command] = []
        pinned: list[Pinned] = []
        room, switch = self._room, None
        for each in asked:
            if each.command.name in SWITCHES:
                if not self._may_pin(work.before, each):
                    continue
                switch = each.command
            if each.pinned is not None:
                room -= each.pinned.size
                if len(pinned) >= most or (room < 0 and pinned):
                    end = each.command.offset
                    break
                if not self._may_pin(work.before, each):
                    continue
                if self._hand_over(each.command.name, each.pinned, work):
                    pinned.append(each.pinned)
            commands.append(each.command)
            if each.command.name == FINISH_UPGRADE:  # because the commands after it may need the newer format
                end = each.command.offset + 1
                break
        work.done = SideInputs(tuple(commands), tuple(pinned), end, switch, work.done.retries)

    def _hand_over(self, name: str, pinned: Pinned, work: SideWork) -> bool:
        """Return whether anything was done, which a replay then repeats.

        :raises FailureDecided: a redriven dead letter failed; it is handled again, with a decision.
        """
        message = PinnedMessage(self._topic, self._tools.place.partition, pinned)
        if not self._has_on_command and name not in REQUESTS and name not in CALL_REQUESTS:
            self._tools.log.warning(
                "command_rejected",
                offset=pinned.offset,
                cause=f"{name!r}: {type(self._engine.handler).__name__} has no on_command. Next: run code that has it, "
                f"and send it again",
            )
        try:
            done = self._engine.obey(message)
            work.send(message)
        except HandlingFailed as failure:
            if name not in REQUESTS or not self._decisions().decide_redriven((self._topic, pinned.offset), failure):
                raise
            raise FailureDecided(failure.at, failure.error) from failure
        if not done:
            self._tools.log.warning(
                "command_rejected",
                offset=pinned.offset,
                cause=f"{name}: " + (_NO_CALL if name in CALL_REQUESTS else _NO_DEAD_LETTER),
            )
        return done

    def close(self) -> None:
        self._control.close()

    def _until_dead_letter(self, asked: list[Asked], end: int, work: SideWork) -> tuple[list[Asked], int]:
        """Return the commands up to a `dlq add` whose record comes next, because its transaction acknowledges it."""
        paused = work.before.paused is not None
        for i, each in enumerate(asked):
            if each.command.name in SWITCHES:
                paused = each.command.name == PAUSE
            elif _precedes(each, work.position, paused=paused):
                return asked[:i], each.command.offset
            elif each.dead_letter is not None and not self._has_obeyed(each.dead_letter):
                self._log_ended(each.command, each.dead_letter, passed=each.dead_letter.position != work.position)
        return asked, end

    def _has_obeyed(self, request: AddRequest) -> bool:
        return (request.topic or self._tools.place.input, request.offset) == self._decisions().commanded

    def _log_ended(self, command: Command, request: AddRequest, *, passed: bool) -> None:
        partition, offset = self._tools.place.partition, request.offset
        dead_letter = self._tools.place.names.dead_letter_name(request.topic, partition, offset)
        cause = (
            f"the partition has passed the record. `statehold dlq show {dead_letter}` shows whether it is a "
            "dead letter; otherwise the handler processed it"
            if passed
            else f"the partition is paused. Next: `statehold resume --partitions {partition}`, then send it again"
        )
        self._tools.log.warning(
            "command_rejected", offset=command.offset, cause=f"{command.name} {partition} {offset}: {cause}"
        )

    def _may_pin(self, record: CommitRecord, asked: Asked) -> bool:
        """Return whether the format allows pinning, because an older release would replay the gap without it."""
        if record.format >= frame.PINNING:
            return True
        self._tools.log.warning(
            "command_rejected",
            offset=asked.command.offset,
            cause=f"{asked.command.name!r} on {self._topic} needs format {frame.PINNING}. Next: run `statehold "
            f"finish-upgrade`, then send it again",
        )
        return False


def _precedes(asked: Asked, position: int, *, paused: bool) -> bool:
    """Return whether this is a `dlq add` whose record comes next: it and the commands behind it wait.

    Not on a paused partition, which handles no record, because `resume` may be behind it.
    """
    return asked.dead_letter is not None and asked.dead_letter.position == position and not paused
