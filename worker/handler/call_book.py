"""Durable calls of one partition: their rows in the state, and what the handler's methods make of the answers.

A call is a row from the transaction of the record that asked to the one of its answer, which deletes it. So an answer
counts once (rule Q2), and a replay, which repeats requests and pinned answers, calls nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple
from weakref import WeakMethod

import msgspec

from statehold.api.call import RECORD_KEY, CallFailure, CallResult, PendingCall
from statehold.api.handler import Handler
from statehold.api.record import Message, Numbering, Record
from statehold.common.decoding import UNREADABLE
from statehold.errors import UsageError
from statehold.messages.call_outcome import (
    DISCARD,
    FAIL,
    RETRY,
    TEXT,
    CallJob,
    CallOutcome,
    CallRequest,
    call_request_of,
    outcome_of,
)
from statehold.messages.command import BadCommand, Command
from statehold.state.kinds.calls import CallTable
from statehold.state.partition_table import PartitionTable
from statehold.state.system_names import CALLS
from statehold.worker.common.activity import Handling, UserCall
from statehold.worker.handler.record_failure import DueFailed, failed

_REQUESTED: Final = "requested"
_ANSWERED: Final = "answered"
_UNLIMITED: Final = 1 << 62


class Resolved(NamedTuple):
    """What an operator did to calls."""

    what: str
    ids: tuple[str, ...]
    who: str
    why: str


class CallBook:
    """Used by the partition's thread."""

    def __init__(
        self,
        handler: Handler[Any],
        tables: Iterable[CallTable[Any, Any]],
        counters: PartitionTable[str, int],
        handling: Handling,
    ) -> None:
        self._handler, self._counters, self._handling = handler, counters, handling
        #: by stored name
        self.tables = {table.name: table for table in tables}
        self.numberings = {name: Numbering() for name in self.tables}
        #: requests of the open transaction, and the ids of what it cancelled; not those of a replay
        self.new: list[CallJob] = []
        self.cancelled: list[str] = []
        #: what operators did in the open transaction
        self.resolved: list[Resolved] = []
        #: requests that the open transaction may make before its batch ends early
        self.room = _UNLIMITED
        request, cancel = WeakMethod(self.request), WeakMethod(self._cancel)  # a cycle would keep a dropped state
        for table in self.tables.values():
            table.follow(_weak(request), _weak(cancel))

    # Requests

    def request(self, table: CallTable[Any, Any], argument: Any, key: Any) -> str:
        """Add a row. :raises UsageError: the argument has another type, or no record is being handled."""
        record = self._handling.record
        if record is None:
            raise UsageError(
                f"{table.attribute}() belongs to a record. Next: call it from on_record, on_command, on_timer or "
                f"the method of an answer"
            )
        try:
            data = table.argument.encode(argument)
            stored = table.argument.decode(data)
        except (TypeError, OverflowError, *UNREADABLE) as error:
            raise UsageError(
                f"{table.attribute}({argument!r:.200}): the argument is no {table.options.argument!r:.100}: {error}"
            ) from error
        lane = _key(table, record.raw_key if key is RECORD_KEY else key)
        number = self._counters.get(_REQUESTED, 0) + 1
        self._counters[_REQUESTED] = number
        index = self.numberings[table.name].next(record)
        name = f"{record.topic}/{record.partition}/{record.offset}/{table.name}/{index}"
        table.write(name, PendingCall(stored, number, record.timestamp, lane))
        self._ask(CallJob(name, table.name, data, lane, record.timestamp))
        return name

    def _ask(self, job: CallJob) -> None:
        if not self._handler.replaying:
            self.new.append(job)
            if len(self.new) >= self.room:
                self._handling.cut()  # because records wait while this many calls are pending

    def _cancel(self, id: str) -> None:
        if not self._handler.replaying:
            self.cancelled.append(id)

    def pending(self) -> Iterator[CallJob]:
        """Yield the calls that wait for an answer, in the order of the requests."""
        rows = [(row.number, table, name, row) for table in self.tables.values() for name, row in table.items()]
        for _, table, name, row in sorted(rows, key=lambda found: found[0]):
            if not row.error:
                yield CallJob(name, table.name, table.argument.encode(row.argument), row.key, row.time)

    # Answers

    def awaits(self, call: str, id: str) -> bool:
        """Return whether an answer to this call would change the state: once."""
        table = self.tables.get(call)
        row = table.get(id) if table is not None else None
        return row is not None and not row.error

    def key(self, outcome: CallOutcome) -> bytes | None:
        row = self.tables[outcome.call].get(outcome.id)
        return row.key if row is not None else None

    def next_offset(self, now: float) -> int:
        """Return the offset of the next answer's entry: microseconds, and never one that was used before.

        Timers, effects and calls that the method requests are named after it.
        """
        return max(self._counters.get(_ANSWERED, 0) + 1, int(now * 1_000_000))

    def answer(self, message: Message) -> bool:
        """Apply a pinned answer; False: the call does not wait for one (rule Q2).

        :raises HandlingFailed: the handler's method raised, or the answer cannot be read.
        """
        record = Record(message, b"")
        try:
            outcome = outcome_of(message)
            if not self.awaits(outcome.call, outcome.id):
                return False
            table = self.tables[outcome.call]
            result = None if outcome.result is None else table.result.decode(outcome.result)
        except UNREADABLE as error:
            raise failed(record, DueFailed("the answer of a call", error)) from error
        self._counters[_ANSWERED] = record.offset
        row = table[outcome.id]
        options = table.options
        if outcome.result is None and not options.on_failed:
            dead = msgspec.structs.replace(row, attempts=outcome.attempts, error=outcome.error or "failed")
            table.write(outcome.id, dead)
            return True
        table.remove(outcome.id)
        facts = row.key, outcome.attempts, row.time, record.timestamp
        call: CallResult[Any, Any] | CallFailure[Any]
        if outcome.result is None:
            name, call = options.on_failed, CallFailure(outcome.id, row.argument, outcome.error, *facts)
        else:
            name, call = options.on_result, CallResult(outcome.id, row.argument, result, *facts)
        self._hand_over(name, call, record)
        return True

    # Operators

    def obey(self, command: Command, message: Message) -> bool:
        """Retry dead calls, forget calls, or end them as failed; return whether the state has changed.

        :raises HandlingFailed: the method of on_failed raised, or the request cannot be read.
        """
        record = Record(message, b"")
        try:
            request = call_request_of(message)
        except BadCommand as error:
            raise failed(record, error) from error
        changed = [name for name in request.ids if self._resolve(command, request, name, record)]
        if changed:
            self.resolved.append(Resolved(command.name, tuple(changed), command.issuer, request.why))
        return bool(changed)

    def _resolve(self, command: Command, request: CallRequest, name: str, record: Record[bytes]) -> bool:
        table = next((each for each in self.tables.values() if name in each), None)
        row = table.get(name) if table is not None else None
        if table is None or row is None or (command.name == RETRY and not row.error):
            return False
        if command.name == RETRY:
            table.write(name, msgspec.structs.replace(row, attempts=0, error=""))
            self._ask(CallJob(name, table.name, table.argument.encode(row.argument), row.key, row.time))
            return True
        if command.name == DISCARD or table.options.on_failed:
            table.remove(name)
        error = f"{command.issuer}: {request.why}"[:TEXT]
        if command.name == FAIL and table.options.on_failed:
            facts = row.key, row.attempts, row.time, record.timestamp
            self._hand_over(table.options.on_failed, CallFailure(name, row.argument, error, *facts), record)
        elif command.name == FAIL:
            table.write(name, msgspec.structs.replace(row, error=error))
        self._cancel(name)
        return True

    def _hand_over(self, name: str, call: CallResult[Any, Any] | CallFailure[Any], record: Record[bytes]) -> None:
        self._handling.record = record
        self._handling.call = UserCall(name, threading.get_ident())
        try:
            getattr(self._handler, name)(call)
        except Exception as error:  # a handler may raise anything
            raise failed(record, DueFailed(f"{name} of the call {call.id}", error)) from error
        finally:
            self._handling.call = None

    # The transaction

    def take(self) -> tuple[list[CallJob], list[str]]:
        """Return what the open transaction requested, and what it cancelled."""
        new, cancelled = self.new, self.cancelled
        self.new, self.cancelled = [], []
        return new, cancelled

    def forget(self) -> None:
        """Roll back the open transaction: its records request the calls again, with the same ids."""
        self.take()
        self.resolved.clear()
        for numbering in self.numberings.values():
            numbering.forget()


def call_book(
    handler: Handler[Any], tables: dict[str, PartitionTable[Any, Any]], handling: Handling
) -> CallBook | None:
    """Return None for a handler that declares no `Call`."""
    if CALLS not in tables:
        return None
    calls = [table for table in tables.values() if isinstance(table, CallTable)]
    return CallBook(handler, calls, tables[CALLS], handling)


def _key(table: CallTable[Any, Any], key: Any) -> bytes | None:
    if isinstance(key, str):
        return key.encode()
    if key is None or isinstance(key, bytes):
        return key
    raise UsageError(f"{table.attribute}(key={key!r:.100}): give str, bytes or None")


def _weak(method: Callable[[], Callable[..., Any] | None]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        alive = method()
        if alive is None:
            raise UsageError("a call was requested on a handler whose partition is closed")
        return alive(*arguments)

    return call
