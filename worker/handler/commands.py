"""Hand commands to the handler: from the input, the control topic, the idle clock and calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from statehold.api.handler import Handler
from statehold.api.record import Message, Record
from statehold.messages.call_outcome import CALL_REQUESTS
from statehold.messages.command import ANSWER, OWN, SLICE, TICK, WORKERS, BadCommand, Command, command_of
from statehold.messages.dead_letter import REQUESTS
from statehold.worker.common.activity import Handling, UserCall
from statehold.worker.handler.call_book import CallBook
from statehold.worker.handler.dead_letters import DeadLetterBook
from statehold.worker.handler.event_time import EventTime
from statehold.worker.handler.record_failure import failed, undecodable
from statehold.worker.handler.time_slices import before, rows_of

T = TypeVar("T")


class Commands:
    """The commands of one engine; used by its thread."""

    def __init__(
        self,
        handler: Handler[Any],
        handling: Handling,
        event_time: EventTime | None,
        dead_letters: DeadLetterBook | None,
        calls: CallBook | None,
        handled: list[Command],
        *,
        from_input: bool,
    ) -> None:
        """`handled`: takes the input's commands of the open transaction, in order."""
        self._handler, self._handling = handler, handling
        self._event_time, self._dead_letters, self._calls = event_time, dead_letters, calls
        self._handled, self._from_input = handled, from_input

    def handle(self, message: Message) -> bool:
        """Handle a command of the input. False: a slice of event time ends before it, so it was not handled.

        :raises HandlingFailed: it cannot be decoded, or on_command or on_timer raised.
        """
        if not self._from_input and not self._handler.replaying:
            raise undecodable(message, BadCommand("a command on the input, but commands.from_input is off"))
        try:
            command = command_of(message)
        except BadCommand as error:
            raise undecodable(message, error) from error
        assert command is not None
        if self._event_time is not None:
            now = self._event_time.time_of(message)
            if not self._pass_time(message, partial(self._event_time.reach, now)):
                return False
        self._handled.append(command)
        if command.name not in OWN and command.name not in WORKERS:
            self._on_command(command, message)
        return True

    def obey(self, message: Message, redrive: Callable[[Message], None]) -> bool:
        """Handle a command that the commit record pins; see `Engine.obey`.

        `redrive` hands a dead letter's record to the handler again. It is not a field, because a cycle would keep a
        dropped state in memory: a restore freezes the collector.
        """
        command = command_of(message)
        assert command is not None
        if command.name in REQUESTS:
            return self._dead_letters is not None and self._dead_letters.obey(command, message, redrive) != ""
        if command.name == ANSWER:
            return self._calls is not None and self._calls.answer(message)
        if command.name in CALL_REQUESTS:
            return self._calls is not None and self._calls.obey(command, message)
        if command.name not in (TICK, SLICE):
            self._on_command(command, message)
        elif self._event_time is not None:
            now = message.timestamp()[1]  # a tick has the worker's own time
            if command.name == TICK:
                self._pass_time(message, partial(self._event_time.reach, now))
            else:
                rows = rows_of(message.value())
                self._pass_time(before(message), partial(self._event_time.repeat, now, rows))
        return True

    def _on_command(self, command: Command, message: Message) -> None:
        record = self._handling.record = Record(message, message.value() or b"")
        self._handling.call = UserCall("on_command", threading.get_ident())
        try:
            self._handler.on_command(command.name, record)
        except Exception as error:  # a handler may raise anything
            raise failed(record, error) from error
        finally:
            self._handling.call = None

    def _pass_time(self, message: Message, advance: Callable[[], T]) -> T:
        """Advance event time by a command of the input, by the tick of an idle partition, or by a slice."""
        record = self._handling.record = Record(message, b"")
        self._handling.call = UserCall("on_timer", threading.get_ident())
        try:
            return advance()
        except Exception as error:  # a handler may raise anything
            raise failed(record, error) from error
        finally:
            self._handling.call = None
