"""Run the handler over records and collect its results: tables, outputs, effects, commands.

It uses no Kafka and no thread: the worker and the test driver run the same engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import repeat
from typing import Any, Final, Literal
from weakref import ref

from statehold.api.handler import Handler
from statehold.api.record import KeyedRecord, Message, Record, at, of_first_input, plain
from statehold.bound.handler import bind, new_state
from statehold.bound.inputs import (
    InputKeys,
    InputMethods,
    RecordKeys,
    declares_keys,
    input_names,
    key_types,
    methods,
    methods_of,
)
from statehold.bound.reference import SharedRows
from statehold.bound.rekey import Sends, bind_rekeys, rekeys_of
from statehold.bound.serdes import partition_serde, shared_serde
from statehold.common.decoding import SHALLOW, with_room
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import UsageError
from statehold.messages.command import COMMAND_HEADER, Command
from statehold.messages.sent import Sent
from statehold.state.partition_table import TracedTable
from statehold.state.state import Frozen, State
from statehold.state.system_names import by_default_name
from statehold.worker.common.activity import Handling, UserCall
from statehold.worker.common.tracing import Tracing
from statehold.worker.handler.call_book import CallBook, call_book
from statehold.worker.handler.commands import Commands
from statehold.worker.handler.dead_letters import DeadLetterBook, dead_letter_book, undeclared_book
from statehold.worker.handler.effect_recorder import EffectRecorder
from statehold.worker.handler.event_time import EventTime, WindowTime, event_time
from statehold.worker.handler.record_failure import HandlingFailed, batch_failed, decode_until_bad, decoded_keys, failed
from statehold.worker.handler.request_book import RequestBook, request_book
from statehold.worker.handler.time_limit import LiveLimit, RecordedLimit

_PLAIN: Final[Callable[[Message, Any], Record[Any]]] = Record


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
        """`state`: a restored state with bound tables; None: an empty one.

        `shared`: the rows of each reference topic; without them the handler finds no reference data.
        """
        #: the record in progress; the watchdog ends a batch early through it
        self._handling = Handling() if handling is None else handling
        self.handler = factory()
        self.handler.partition = partition
        kind = type(self.handler)
        self.outputs: list[Sent] = [] if tracing is None else tracing.outputs(self._handling)
        if state is None:
            state = new_state(kind, traced=traced, track_delta=track_delta)
        self.state, self._traced, self._settings, self._names = state, traced, settings or Settings(), names
        bound = bind(self.handler, state, self.outputs, output_partitions, shared or {}, checked=traced)
        self._bound_outputs, self.sinks, self.references = bound
        #: the sends to streams by another key; None if the handler declares none
        self.sends: Sends | None = None
        if rekeys_of(kind):
            self.sends = Sends(self._handling, names, self._settings.rekey.max_hops)
            own = bind_rekeys(self.handler, names, self.outputs, output_partitions, self.sends, checked=traced)
            self._bound_outputs += own
        #: dead letters; None if the handler declares none, until an operator makes one
        self.dead_letters: DeadLetterBook | None = None
        #: event time; None if the handler has no timer and no expiry
        self.event_time: EventTime | None = None
        #: decides live which records are too far ahead of the clock to advance event time; None: no record is
        self.live_limit: LiveLimit | None = None
        #: durable calls; None if the handler declares none
        self.calls: CallBook | None = None
        #: requests; None if the handler declares no `Replies`
        self.requests: RequestBook | None = None
        #: the methods of several inputs; None for a handler with on_record or on_batch
        self._methods: InputMethods | None = None
        if methods(kind):
            inputs = names.inputs if names is not None else ()
            self._methods = InputMethods(self.handler, inputs, methods_of(kind, names))
        if "." in "".join(state.tables):  # the name of a system table has one
            system = by_default_name(state.tables)
            self.dead_letters = dead_letter_book(system, names, partition, self.outputs)
            self.calls = call_book(self.handler, system, self._handling)
            self.event_time = event_time(self.handler, system, self._handling)
            most = self._settings.kafka.message_max_bytes
            self.requests = request_book(system, names, partition, self.outputs, most)
            self._report_failures()
        #: called once, before the first effect, because side effects then join the transactions
        self.on_first_effect: Callable[[], None] | None = None
        # Weak, because a cycle would keep a dropped state: a restore freezes the collector (snapshot.garbage).
        self.handler._note_effect = partial(_note_effect, ref(self))
        #: where event time stops in a call
        self.slices = None if self.event_time is None else self.event_time.slices
        if self.slices is not None:
            self.slices.names_record = self.sends is not None
            self.slices.numberings.append(self.effects.numbering)
            if self.calls is not None:
                self.slices.numberings += self.calls.numberings.values()
        #: the input's commands of the open transaction, in order
        self.commands: list[Command] = []
        #: the decoders of keys; None if they are bytes
        typed = self.handler._service_key is not None or declares_keys(kind)
        self._keys = self._input_keys() if typed else None
        #: not used if each input has a method, because then its type is the method's
        self._decode = bytes if self._methods is not None else (shared_serde(kind) or partition_serde(kind)).decode
        #: the live loop accepts only values that leave room on the stack for a replay
        self.leaves_room = False
        self._batched = kind.on_batch is not Handler.on_batch
        self._single = not self._batched or kind.on_record is not Handler.on_record

    def _input_keys(self) -> InputKeys:
        inputs, declared = input_names(type(self.handler), self._names), key_types(self.handler, self._names)
        if isinstance(self.event_time, WindowTime):
            self.event_time.record_keys = RecordKeys(inputs, declared)
        return InputKeys(inputs, declared)

    @cached_property
    def effects(self) -> EffectRecorder:
        """Side effects that the open transaction has requested."""
        return EffectRecorder(self.handler, self._handling, self._settings)

    # Handling

    def run(self, messages: Sequence[Message], *, one_by_one: bool = False) -> int:
        """Hand the messages to the handler, in order; return how many it handled.

        It handles all of them, unless `Handling.cut` ends the batch early, or a slice of event time.

        :raises HandlingFailed: at the first record that cannot be decoded or handled; those before it were handled.
        """
        if self.slices is not None:
            self.slices.begin(messages[0])
        book = self.dead_letters if self.dead_letters is not None and self.dead_letters.active else None
        given = messages if self._methods is None else of_first_input(messages)
        if book is None and not (given and any(map(type(given[0]).headers, given))):
            return self._run(messages, one_by_one)
        return self._run_in_parts(messages, one_by_one, book)

    def _run_in_parts(self, messages: Sequence[Message], one_by_one: bool, book: DeadLetterBook | None) -> int:
        """Cut the batch at each record that does not go to on_record or on_batch: a dead letter, or a command."""
        start = 0
        for i, message in enumerate(messages):
            command = self._is_command(message)
            if book is not None and book.takes(message, command=command):
                handle: Callable[[Message], bool | None] = book.take
            elif command:
                handle = self._commands.handle
            else:
                continue
            if start < i and (handled := self._run(messages[start:i], one_by_one)) < i - start:
                return start + handled
            if handle(message) is False:
                return i
            start = i + 1
        return start + self._run(messages[start:], one_by_one) if start < len(messages) else start

    def handle_again(self, message: Message) -> None:
        """Hand the record of a dead letter or of a retry topic to the handler.

        :raises HandlingFailed: it fails again.
        """
        if self.slices is not None:
            self.slices.end()
        if self._is_command(message):
            self._commands.handle(message)
        else:
            self._run([message], one_by_one=True)

    def _run(self, messages: Sequence[Message], one_by_one: bool) -> int:
        sent = messages if self._methods is None else plain(messages)
        given = list(map(type(sent[0]).value, sent))
        if self.leaves_room and max(map(len, filter(None, given)), default=0) > SHALLOW:
            values, bad = with_room(partial(self._decoded, messages), given)
        else:
            values, bad = self._decoded(messages, given)
        requests, keys = self.requests, None
        if self._keys is not None:
            keys, bad_key = self._decoded_keys(self._keys, messages[: len(values)])
            values, bad = values[: len(keys)], bad_key or bad
        if requests is not None:
            records = requests.records(messages, values, keys)
        elif keys is None:
            records = list(map(_PLAIN, messages, values))
        else:
            records = list(map(KeyedRecord, messages, values, keys))
        if self._batched and not (one_by_one and self._single):
            for batch in ([each] for each in records) if one_by_one else (records,):
                self._on_batch(batch)
        elif (handled := self._on_records(records, messages)) < len(values):
            return handled
        if bad is not None:
            raise bad
        return len(messages)

    def _on_records(self, records: list[Record[Any]], messages: Sequence[Message]) -> int:
        """Return how many were handled: `Handling.cut` empties the list, which ends the loop, or a slice ends it."""
        handling, given = self._handling, len(records)
        calls: Iterable[Callable[[Any], None]] = (
            repeat(self.handler.on_record) if self._methods is None else self._methods.calls(messages)
        )
        if self.requests is not None:
            calls = self.requests.calls(records, calls)
        handling.record, handling.rest, handling.call = None, records, UserCall("on_record", threading.get_ident())
        try:
            if self.event_time is not None:
                self.event_time.handle(records, calls, messages)
            else:
                for record, call in zip(records, calls, strict=False):  # `Handling.cut` shortens the records
                    handling.record = record
                    call(record)
        except HandlingFailed:
            raise
        except Exception as error:  # a handler may raise anything
            if handling.record is None:  # the files of tables on disk failed before the first record
                raise
            raise failed(handling.record, error) from error
        finally:
            handling.call, handling.rest = None, []
        inside = self.slices is not None and self.slices.inside
        if len(records) == given and not inside:
            return given
        last = -1 if handling.record is None else at(handling.record.message)
        return sum(at(message) <= last for message in messages) - inside

    def _on_batch(self, records: list[Record[Any]]) -> None:
        if not records:
            return
        self._handling.record = records[0]
        self._handling.call = UserCall("on_batch", threading.get_ident())
        try:
            self.handler.on_batch(records)
        except Exception as error:  # a handler may raise anything
            raise batch_failed(records[0], error, can_single=self._single or len(records) > 1) from error
        finally:
            self._handling.call = None

    def _decoded(self, messages: Sequence[Message], given: list[Any]) -> tuple[list[Any], HandlingFailed | None]:
        """Return the values up to the first that cannot be decoded, and its failure."""
        methods, decode = self._methods, self._decode
        try:
            return list(map(decode, given)) if methods is None else methods.decode_all(messages, given), None
        except Exception:  # noqa: BLE001  because a decoder may raise anything; find the record
            one = (lambda message: decode(message.value())) if methods is None else methods.decode
            return decode_until_bad(one, messages)

    def _decoded_keys(self, keys: InputKeys, messages: Sequence[Message]) -> tuple[list[Any], HandlingFailed | None]:
        """Return the keys up to the first that cannot be decoded, and its failure."""
        given = keys.given(messages)
        if self.leaves_room and max(map(len, filter(None, given)), default=0) > SHALLOW:
            return with_room(partial(decoded_keys, keys, messages), given)
        return decoded_keys(keys, messages, given)

    def _is_command(self, message: Message) -> bool:
        """Return whether a record is a command: of several inputs only the first has them."""
        headers = message.headers()
        if not headers or all(name != COMMAND_HEADER for name, _ in headers):
            return False
        return self._names is None or message.topic() == self._names.input

    def obey(self, message: Message) -> bool:
        """Handle a user's command of the control topic, a dead-letter command, a tick, or the answer of a call.

        False: it names a dead letter whose turn it is not, and nothing was done.

        :raises HandlingFailed: on_command or on_timer raised, or a dead letter failed again.
        """
        return self._commands.obey(message, self.handle_again)

    @cached_property
    def _commands(self) -> Commands:
        return Commands(
            self.handler,
            self._handling,
            self.event_time,
            self.dead_letters,
            self.calls,
            self.commands,
            from_input=self._settings.commands.from_input,
        )

    def open_dead_letters(self) -> DeadLetterBook:
        """Return the book of dead letters; a handler that declares none gets one that blocks no key."""
        if self.dead_letters is None:
            muted = self.handler.replaying
            self.dead_letters = undeclared_book(self._names, self.handler.partition, self.outputs, muted=muted)
            self._report_failures()
        return self.dead_letters

    def _report_failures(self) -> None:
        """Let the asker of a request know that its record has become a dead letter, or is retried later."""
        if self.dead_letters is not None and self.requests is not None:
            self.dead_letters.on_failed, self.dead_letters.is_answered = self.requests.failed, self.requests.knows

    def limit_time(self, recorded: int | None) -> None:
        """Let records advance event time as far as their commit record says: `CommitRecord.time_limit`.

        None: decide it live.
        """
        if self.event_time is not None:
            limit = self.live_limit if recorded is None else RecordedLimit(recorded) if recorded else None
            self.event_time.limit = limit

    def call_hook(self, name: Literal["on_live", "on_stop"]) -> None:
        """Call the user's hook. Raises what the hook raises."""
        self._handling.record = None  # because a hook belongs to no record
        self._handling.call = UserCall(name, threading.get_ident())
        try:
            getattr(self.handler, name)()
        finally:
            self._handling.call = None

    def mute(self, replaying: bool) -> None:
        """Discard outputs and effects during a replay."""
        self._handling.record = None
        self.handler.replaying = replaying
        for output in self._bound_outputs:
            output.mute(replaying)
        if self.sinks is not None:
            self.sinks.mute(replaying)
        if self.dead_letters is not None:
            self.dead_letters.muted = replaying
        if self.requests is not None:
            self.requests.replies.muted = replaying

    # One transaction

    def renew(self) -> None:
        """Begin the next transaction: it sees the newest reference data."""
        for reference in self.references.values():
            reference.renew()

    def take_outputs(self) -> list[Sent]:
        """Return the outputs since the last call; the list object stays, because the outputs append to it."""
        taken = self.outputs.copy()
        self.outputs.clear()
        return taken

    def take_commands(self) -> list[Command]:
        """Return the input's commands since the last call."""
        taken, self.commands[:] = self.commands.copy(), []
        return taken

    def freeze(self) -> Frozen:
        """:raises UnstorableValue: :raises MutatedInPlace: in development, when a value was changed without put()."""
        if self._traced:
            for table in self.state.tables.values():
                if isinstance(table, TracedTable):
                    table.check_in_place()
        return self.state.freeze()

    def rollback(self) -> None:
        """Drop all changes since the last commit (rule T5)."""
        self.state.rollback()
        self.outputs.clear()
        if self.requests is not None:
            self.requests.forget()
        if self.sinks is not None:
            self.sinks.forget()
        if "effects" in vars(self):  # the handler has requested some
            self.effects.forget()
        self.commands.clear()
        self._handling.record = None
        if self.dead_letters is not None:
            self.dead_letters.forget()
        if self.event_time is not None:
            self.event_time.forget()
        if self.calls is not None:
            self.calls.forget()


def _note_effect(
    engine: ref[Engine], function: Callable[..., object], args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> None:
    """Note a side effect that the handler requests: `Handler.effect`."""
    alive = engine()
    if alive is None:
        raise UsageError("effect() was called on a handler whose partition is closed")
    if alive.effects.takes():
        if alive.on_first_effect is not None:
            join, alive.on_first_effect = alive.on_first_effect, None
            join()
        alive.effects.note(function, args, keywords)
