"""Runs the handler over records and keeps what it did together: tables, outputs, effects, position.

No Kafka and no thread in here: the worker and the test driver run the same engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from statehold import serde
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.declared.attributes import declared, sinks_of
from statehold.declared.serdes import input_type
from statehold.errors import UsageError
from statehold.handler import Handler, overrides
from statehold.messages.command import COMMAND_HEADER, OWN, TICK, BadCommand, Command, command_of
from statehold.messages.dead_letter import REQUESTS
from statehold.output import Sent
from statehold.record import Message, Record
from statehold.reference import SharedRows, Version, references
from statehold.sink import Sinks
from statehold.snapshot.state import Frozen, State
from statehold.table import Table
from statehold.tables.binding import bind
from statehold.tables.system import by_default_name
from statehold.worker.common.activity import Handling
from statehold.worker.common.tracing import Tracing
from statehold.worker.handler.dead_letters import Letters, letters_of
from statehold.worker.handler.effect_recorder import Noting
from statehold.worker.handler.event_time import moments
from statehold.worker.handler.record_failure import Poisoned, poisoned, undecodable


class Engine:
    """One handler instance with its tables and outputs. Used by one thread."""

    def __init__(
        self,
        factory: Callable[[], Handler[Any]],
        partition: int,
        *,
        track_delta: bool = False,
        traced: bool = False,
        output_partitions: Callable[[str], int] = lambda topic: 0,
        handling: Handling | None = None,
        tracing: Tracing | None = None,
        settings: Settings | None = None,
        names: Names | None = None,
        state: State | None = None,
        shared: Mapping[str, SharedRows] | None = None,
    ) -> None:
        """`state`: one that is there already, of tables that were bound as these would be.

        `shared`: the rows of each reference topic; without them the handler finds no reference data.
        """
        #: which record is being handled, and who may cut a batch short
        self._handling = Handling() if handling is None else handling
        self.handler = factory()
        self.outputs: list[Sent] = [] if tracing is None else tracing.outputs(self._handling)
        #: commands of the open transaction, in order
        self.commands: list[Command] = []
        tables, outputs = declared(type(self.handler))
        self._bound_outputs = {
            name: output.bind(self.outputs, output_partitions(output.topic) if output.partitioner else 0)
            for name, output in outputs.items()
        }
        self.state = bound_state(tables, traced=traced, track_delta=track_delta) if state is None else state
        bound = dict(self.state.tables)
        sinks = {name: sink.bind() for name, sink in sinks_of(type(self.handler)).items()}
        #: rows for a database
        self.sinks = Sinks(sinks.values())
        rows = shared or {}
        #: reference data, by attribute name
        self.references = {
            name: reference.bind(rows.get(reference.topic) or SharedRows(0))
            for name, reference in references(type(self.handler)).items()
        }
        bound_all = (*bound.items(), *self._bound_outputs.items(), *sinks.items(), *self.references.items())
        for attribute, value in bound_all:
            setattr(self.handler, attribute, value)
        self.handler.partition = partition
        system = by_default_name(bound)
        #: None where no record can become a dead letter
        self.letters = letters_of(system, names, partition, self.outputs)
        self._traced = traced
        self._decode = serde.for_messages(input_type(type(self.handler))).decode
        self._batched = overrides(self.handler, "on_batch")
        self._single = overrides(self.handler, "on_record")
        #: side effects that the open transaction has asked for
        self.effects = Noting(self.handler, self._handling, Settings() if settings is None else settings)
        #: what goes by the partition's time; None where nothing does, at no cost
        self.moments = moments(self.handler, system, self._handling)
        self._on_record = self.handler.on_record if self.moments is None else self.moments.handle

    # Handling

    def renew(self) -> None:
        """The next transaction begins: it sees the newest reference data."""
        for reference in self.references.values():
            reference.renew()

    @property
    def reference(self) -> dict[str, Version]:
        """The version of each reference topic that the open transaction sees."""
        return {reference.topic: reference.version for reference in self.references.values()}

    def mute(self, replaying: bool) -> None:
        """In a replay outputs and effects go nowhere."""
        self._handling.record = None
        self.handler.replaying = replaying
        for output in self._bound_outputs.values():
            output.muted = replaying
        self.sinks.mute(replaying)
        if self.letters is not None:
            self.letters.muted = replaying

    def run(self, messages: Sequence[Message], *, one_by_one: bool = False) -> int:
        """Hand the messages to the handler, in order; how many were handled, all unless `Handling.cut` ended it early.

        :raises Poisoned: at the first record that cannot be decoded or handled; those before it have been handled.
        """
        if self.letters is not None and self.letters.active:
            return self._run_beside_letters(self.letters, messages, one_by_one)
        return self._run(messages, one_by_one)

    def _run_beside_letters(self, letters: Letters, messages: Sequence[Message], one_by_one: bool) -> int:
        """Some may be none for the handler: cut the batch at each of those."""
        start = 0
        for i, message in enumerate(messages):
            if not letters.takes(message):
                continue
            if start < i and (handled := self._run(messages[start:i], one_by_one)) < i - start:
                return start + handled
            letters.take(message)
            start = i + 1
        return start + self._run(messages[start:], one_by_one) if start < len(messages) else start

    def _run(self, messages: Sequence[Message], one_by_one: bool) -> int:
        if any(map(type(messages[0]).headers, messages)):
            return self._run_with_headers(messages, one_by_one)
        return self._run_plain(messages, one_by_one)

    def try_letter(self, message: Message) -> None:
        """Hand over the record of a letter or of a retry topic, in the place of the open transaction's last one.

        :raises Poisoned: it fails again.
        """
        self._run([message], one_by_one=True)

    def _run_plain(self, messages: Sequence[Message], one_by_one: bool) -> int:
        undecodable: Poisoned | None = None
        try:
            values = list(map(self._decode, map(type(messages[0]).value, messages)))
        except Exception:  # noqa: BLE001  a decoder may raise anything; find out where
            values, undecodable = self._decode_until_bad(messages)
        records = list(map(Record, messages, values))
        if self._batched and not (one_by_one and self._single):
            self._on_batch(records)
        elif (handled := self._on_records(records, messages)) < len(values):
            return handled
        if undecodable is not None:
            raise undecodable
        return len(messages)

    def _on_records(self, records: list[Record[Any]], messages: Sequence[Message]) -> int:
        """How many were handled: `Handling.cut` empties the list, which ends the loop."""
        handle, handling, given = self._on_record, self._handling, len(records)
        record = None
        handling.enter("on_record", threading.get_ident(), records)
        try:
            for record in records:
                handling.record = record
                handle(record)
        except Exception as error:  # a handler may raise anything
            assert record is not None
            raise poisoned(record, error) from error
        finally:
            handling.leave()
        if len(records) == given:
            return given
        last = -1 if record is None else record.offset
        return sum((message.offset() or 0) <= last for message in messages)

    def _on_batch(self, records: list[Record[Any]]) -> None:
        if not records:
            return
        self._handling.record = records[0]
        self._handling.enter("on_batch", threading.get_ident())
        try:
            self.handler.on_batch(records)
        except Exception as error:  # a handler may raise anything
            raise poisoned(records[0], error, batch=self._single) from error
        finally:
            self._handling.leave()

    def call_hook(self, name: Literal["on_live", "on_stop"]) -> None:
        """Raises what the user's hook raises."""
        self._handling.enter(name, threading.get_ident())
        try:
            getattr(self.handler, name)()
        finally:
            self._handling.leave()

    def _run_with_headers(self, messages: Sequence[Message], one_by_one: bool) -> int:
        """Commands are rare: cut the batch at each of them."""
        start = 0
        for i, message in enumerate(messages):
            if not any(name == COMMAND_HEADER for name, _ in message.headers() or ()):
                continue
            if start < i and (handled := self._run_plain(messages[start:i], one_by_one)) < i - start:
                return start + handled
            self._on_command(message)
            start = i + 1
        return start + self._run_plain(messages[start:], one_by_one) if start < len(messages) else start

    def _on_command(self, message: Message) -> None:
        try:
            command = command_of(message)
        except BadCommand as error:
            raise Poisoned(message.offset() or 0, undecodable(message, error)) from error
        assert command is not None
        self.commands.append(command)
        if self.moments is not None:
            self._pass_time(message)
        if command.name not in OWN and command.name != TICK:
            self._obey(command, message)

    def obey(self, message: Message) -> bool:
        """Hand over what the mark of the open transaction pins: a user's command of the control topic, or a tick.

        False: it is about a letter, and nothing was done.

        :raises Poisoned: on_command or on_timer raised, or a letter has failed again.
        """
        command = command_of(message)
        assert command is not None
        if command.name in REQUESTS:
            return self.letters is not None and self.letters.obey(command, message, self.try_letter) != ""
        if command.name == TICK:
            self._pass_time(message)
        else:
            self._obey(command, message)
        return True

    def _obey(self, command: Command, message: Message) -> None:
        record = self._handling.record = Record(message, message.value() or b"")
        self._handling.enter("on_command", threading.get_ident())
        try:
            self.handler.on_command(command.name, record)
        except Exception as error:  # a handler may raise anything
            raise poisoned(record, error) from error
        finally:
            self._handling.leave()

    def _pass_time(self, message: Message) -> None:
        """A command of the input, or the clock of an idle partition as its mark pins it, tells how late it is."""
        if self.moments is None:
            return
        record = self._handling.record = Record(message, b"")
        self._handling.enter("on_timer", threading.get_ident())
        try:
            self.moments.reach(record.timestamp)
        except Exception as error:  # a handler may raise anything
            raise poisoned(record, error) from error
        finally:
            self._handling.leave()

    def _decode_until_bad(self, messages: Sequence[Message]) -> tuple[list[Any], Poisoned | None]:
        values: list[Any] = []
        for message in messages:
            try:
                values.append(self._decode(message.value()))
            except Exception as error:  # noqa: BLE001  a decoder may raise anything
                return values, Poisoned(message.offset() or 0, undecodable(message, error))
        return values, None

    # One transaction

    def take_outputs(self) -> list[Sent]:
        """What the handler has sent since the last call; the list itself stays, the outputs append to it."""
        taken = self.outputs.copy()
        self.outputs.clear()
        return taken

    def take_commands(self) -> list[Command]:
        taken, self.commands = self.commands, []
        return taken

    def freeze(self) -> Frozen:
        """:raises MutatedInPlace: in development, when a table value was changed without put()."""
        if self._traced:
            self.state.check_in_place()
        return self.state.freeze()

    def refuse_writes(self, hook: str) -> None:
        """:raises UsageError: the hook wrote or sent something, which belongs to no record."""
        written = [name for name, table in self.state.tables.items() if table.written]
        written += self.sinks.written
        if written or self.outputs:
            self.rollback()
            raise UsageError(
                f"{hook} wrote to {', '.join(written) or 'an output'}: that belongs to no record, would be lost with "
                f"the next abort and be missing in a replay. Write in on_record, on_batch or on_command"
            )

    def rollback(self) -> None:
        """Forget all that was done since the last commit (rule T5)."""
        self.state.rollback()
        self.outputs.clear()
        self.sinks.forget()
        self.effects.forget()
        self.commands.clear()
        if self.letters is not None:
            self.letters.forget()
        self._handling.record = None
        if self.moments is not None:
            self.moments.forget()


def bound_state(tables: dict[str, Table[Any, Any]], *, traced: bool, track_delta: bool) -> State:
    """An empty state of these declarations, for one partition."""
    return State([bind(table, traced=traced) for table in tables.values()], track_delta=track_delta)
