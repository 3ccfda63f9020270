"""Gives the new handler the records of one live transaction: at once, or one by one to name the record of a result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from statehold.api.record import Message, Record
from statehold.bound.sink import Rows
from statehold.errors import StateholdError, UnstorableValue
from statehold.messages.command import command_of
from statehold.messages.dead_letter import REQUESTS
from statehold.messages.pinned_command import PinnedMessage
from statehold.messages.sent import Sent
from statehold.rehearsal.failing import NewFailures
from statehold.snapshot.format.records import Effect
from statehold.state.partition_table import Changes
from statehold.state.state import Frozen
from statehold.worker.failures.history import HandledRetry
from statehold.worker.failures.retry_records import handle
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import BatchFailed, HandlingFailed, failed

#: records of one call of the handler
_BATCH: Final = 500


class LiveTransaction(NamedTuple):
    """What a live transaction handled, in its order."""

    n: int
    messages: Sequence[Message]
    pinned: Sequence[PinnedMessage]
    retries: Sequence[HandledRetry]
    #: see `CommitRecord.time_limit`
    time_limit: int = 0


class HandlerFailure(NamedTuple):
    """A record at which the partition would pause."""

    record: str
    error: StateholdError


@dataclass(slots=True)
class NewResults:
    """What the new code makes of a transaction."""

    sent: list[Sent] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    #: the changes of sinks, in the order of the records; a later one of the same key counts
    rows: list[Rows] = field(default_factory=list)
    #: coordinates of the records in their order; empty if they were handled at once, as the next two
    records: list[str] = field(default_factory=list)
    #: the record of each output, by its number in `records`
    sent_by: list[int] = field(default_factory=list)
    #: by table and key: the records that wrote it
    wrote: dict[tuple[str, Any], list[int]] = field(default_factory=dict)
    failed: list[HandlerFailure] = field(default_factory=list)


class NewCode:
    """The new handler with its tables, used by one thread."""

    def __init__(self, engine: Engine, failures: NewFailures, start: Mapping[str, int]) -> None:
        """`start`: next offsets of the inputs at the beginning."""
        self._engine, self._failures, self._start = engine, failures, start
        #: seconds in the handler
        self.seconds = 0.0

    def at_once(self, given: LiveTransaction) -> tuple[NewResults, Frozen] | None:
        """Handle all, and freeze the writes. None: a record fails; nothing has changed then."""
        engine, effects = self._engine, list[Effect]()
        engine.limit_time(given.time_limit)
        began = time.perf_counter()
        try:
            for low in range(0, len(given.messages), _BATCH):
                rest = given.messages[low : low + _BATCH]
                while rest:
                    rest = rest[engine.run(rest) :]
                    effects += engine.effects.take()
            for message in given.pinned:
                engine.obey(message)
            for each in given.retries:
                self._retry(each)
            frozen = engine.freeze()
        except (HandlingFailed, UnstorableValue):
            engine.rollback()
            return None
        finally:
            self.seconds += time.perf_counter() - began
        engine.take_commands()
        effects += engine.effects.take()
        return NewResults(engine.take_outputs(), effects, self._rows()), frozen

    def commit(self, frozen: Frozen) -> None:
        """Make the writes part of the state."""
        self._engine.state.commit(frozen, delta=True)

    def undo(self) -> None:
        """Drop the frozen writes."""
        self._engine.rollback()

    def one_by_one(self, given: LiveTransaction, note: Callable[[Sequence[Changes]], None]) -> NewResults:
        """Handle and commit each record alone; decide about those that fail. `note` gets the writes before."""
        found = NewResults()
        self._engine.limit_time(given.time_limit)
        run = partial(self._alone, found, note)
        for message in given.messages:
            run(partial(self._input, message), message, None)
        for pinned in given.pinned:
            run(partial(self._engine.obey, pinned), pinned, None)
        for each in given.retries:
            run(partial(self._retry, each), each.retried.message, each)
        return found

    def _alone(
        self,
        found: NewResults,
        note: Callable[[Sequence[Changes]], None],
        handle_it: Callable[[], object],
        message: Message,
        retry: HandledRetry | None,
    ) -> None:
        engine, attempts, number = self._engine, 0, len(found.records)
        found.records.append(coordinates_text(message))
        while not isinstance(tried := self._try(handle_it, message), Frozen):
            engine.rollback()
            attempts += 1
            if not self._decide(tried, message, attempts, retry):
                found.failed.append(HandlerFailure(found.records[number], tried.error))
                return
        note(tried.changes)
        engine.state.commit(tried, delta=True)
        engine.take_commands()
        found.effects.extend(engine.effects.take())
        found.rows.extend(self._rows())
        sent = engine.take_outputs()
        found.sent.extend(sent)
        found.sent_by.extend([number] * len(sent))
        for changes in tried.changes:
            for key in changes.keys:
                found.wrote.setdefault((changes.table, key), []).append(number)

    def _try(self, handle_it: Callable[[], object], message: Message) -> Frozen | HandlingFailed:
        began = time.perf_counter()
        try:
            handle_it()
            return self._engine.freeze()
        except HandlingFailed as failure:
            return failure
        except UnstorableValue as error:
            return failed(Record(message, None), error)
        finally:
            self.seconds += time.perf_counter() - began

    def _decide(self, cause: HandlingFailed, message: Message, attempts: int, retry: HandledRetry | None) -> bool:
        if isinstance(message, PinnedMessage):
            command = command_of(message)
            redrive = command is not None and command.name in REQUESTS
            return redrive and self._failures.redriven(cause, message)
        return self._failures.decide(cause, message, attempts, retry)

    def _input(self, message: Message) -> None:
        try:
            self._engine.run([message])
        except BatchFailed:
            self._engine.rollback()
            self._engine.run([message], one_by_one=True)

    def _retry(self, each: HandledRetry) -> None:
        if self._failures.waits(each, self._start):
            handle(self._engine, *each)

    def _rows(self) -> list[Rows]:
        sinks = self._engine.sinks
        make = sinks.take() if sinks is not None else None
        return make() if make is not None else []


def coordinates_text(message: Message) -> str:
    return f"{message.topic()}[{message.partition()}]@{message.offset()}"
