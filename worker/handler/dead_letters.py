"""Dead-letter state of one partition: block keys, redrive, discard.

`worker.failures` decides once that a record becomes a dead letter. The decision belongs to the running transaction: a
restore finds it in a delta and does not decide again (docs/design.md, "Failing records"). The state decides that later
records of a blocked key follow, so a replay decides identically.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from statehold.api.record import Message, at
from statehold.api.table import Table
from statehold.common.names import Names
from statehold.messages.command import Command
from statehold.messages.dead_letter import (
    BLOCKED_KEYS,
    DISCARD,
    DISCARDED,
    FAILED_AGAIN,
    REPLAYED,
    RESOLVED,
    BlockedKey,
    DeadLetterRequest,
    Failure,
    dead_letter_of,
    is_of,
    redriven,
    request_of,
    trace,
)
from statehold.messages.retry_record import retried
from statehold.messages.sent import Sent
from statehold.state.partition_table import PartitionTable


class FailureDecision(msgspec.Struct, frozen=True, array_like=True):
    """What a failed record becomes when it is handled again."""

    failure: Failure
    #: of the retry topic, and the due time there (milliseconds since 1970); 0: it becomes a dead letter
    delay: float = 0.0
    level: int = 0
    due: int = 0


def coordinates(message: Message) -> tuple[str, int]:
    """Return topic and offset, the key of a decision."""
    return message.topic() or "", message.offset() or 0


class DeadLetterBook:
    """Blocked keys and dead letters of one engine; used by the partition's thread."""

    def __init__(
        self, tables: dict[str, PartitionTable[object, object]], names: Names, partition: int, outputs: list[Sent]
    ) -> None:
        self._blocked: PartitionTable[bytes, BlockedKey] = tables[BLOCKED_KEYS]  # type: ignore[assignment]
        self._resolved: PartitionTable[int, int] = tables[RESOLVED]  # type: ignore[assignment]
        self._names, self._dead, self._partition, self._outputs = names, names.dead, partition, outputs
        #: the state keeps blocked keys and resolved dead letters, because the handler declares dead letters
        self.keeps_order = True
        self.muted = False
        self._noun = "offset" if len(names.inputs) == 1 else "place"
        #: of records that are handled again, by topic and offset
        self.decisions: dict[tuple[str, int], FailureDecision] = {}
        #: the open transaction needs a delta, because a replay would not decide again
        self.decided = False
        #: gets each failed record, its failure, and what becomes of it; None for a handler that answers no requests
        self.on_failed: Callable[[Message, Failure, str], None] | None = None
        #: answers a request whose id is kept, and returns whether it was one: it follows no dead letter
        self.is_answered: Callable[[Message], bool] | None = None
        #: dead letters and resolutions of the open transaction, by kind
        self.counts: dict[str, int] = {}

    @property
    def active(self) -> bool:
        """A record may bypass the handler, because a key is blocked or a decision is pending."""
        return self._blocked.used or bool(self.decisions)

    @property
    def keys(self) -> int:
        """Number of blocked keys, as committed."""
        return len(self._blocked.stored)

    def takes(self, message: Message, *, command: bool) -> bool:
        """Return whether this record becomes a dead letter or a retry instead of a handler call."""
        if coordinates(message) in self.decisions:
            return True
        key = message.key()
        return key is not None and key in self._blocked and not command

    def take(self, message: Message) -> None:
        """Apply the decision about a failed record, or let it follow the dead letters of its blocked key."""
        decision = self.decisions.get(coordinates(message))
        if decision is None:
            self._follow(message)
        else:
            self.carry_out(decision, message)

    def carry_out(self, decision: FailureDecision, message: Message) -> None:
        """Send the record to the dead-letter topic, or to a retry topic."""
        self.decided = True
        if decision.delay:
            topic = self._names.retry(decision.delay)
            self._send("retried_later", retried(topic, message, decision.failure, decision.level, decision.due))
            if self.on_failed is not None:
                self.on_failed(message, decision.failure, f"retried in {decision.delay:g} s")
        else:
            self._dead_letter(message, decision.failure)

    def _follow(self, message: Message) -> None:
        if self.is_answered is not None and self.is_answered(message):
            return
        key, place = message.key(), at(message)
        row = self._blocked[key]
        failure = Failure(row.error, f"its key waits since {self._noun} {row.first}", 0, ordered=True)
        self._send("followed", dead_letter_of(self._dead, message, "followed", failure, row.last))
        self._blocked[key] = msgspec.structs.replace(row, last=place, waiting=row.waiting + 1)
        if self.on_failed is not None:
            self.on_failed(message, failure, "dead letter")

    def _dead_letter(self, message: Message, failure: Failure) -> None:
        """Write the dead letter; a record without a key blocks nothing."""
        key, place = message.key(), at(message)
        ordered, previous = failure.ordered and key is not None and self.keeps_order, -1
        if ordered:
            row = self._blocked.get(key)
            if row is not None:  # blocked by a decision of this transaction
                previous = row.last
                self._blocked[key] = msgspec.structs.replace(row, last=place, waiting=row.waiting + 1)
            else:
                self._blocked[key] = BlockedKey(place, place, error=failure.error)
        stored = msgspec.structs.replace(failure, ordered=ordered)
        self._send("raised", dead_letter_of(self._dead, message, "raised", stored, previous))
        if self.on_failed is not None:
            self.on_failed(message, failure, "dead letter")

    def handled(self) -> None:
        """Note a handled record of a retry topic: no replay finds it in the input's order."""
        self.decided = True
        self.counts["retried"] = self.counts.get("retried", 0) + 1

    # Redrive and discard: commands of the control topic

    def obey(self, command: Command, message: Message, run: Callable[[Message], None]) -> str:
        """Redrive or discard one dead letter; return the result, '' if it is not its turn.

        Raises the errors of `run`.
        """
        request = request_of(message)
        if not self._may(request):
            return ""
        self.decided = True
        decision = self.decisions.get(coordinates(message))
        what = DISCARDED if command.name == DISCARD else REPLAYED
        if decision is not None:
            what = FAILED_AGAIN
        elif what == REPLAYED:
            run(redriven(self._names.inputs, self._partition, request))
        if what != FAILED_AGAIN:
            self._resolve(request)
        failure = decision.failure if decision is not None else None
        self._send(what, trace(self._dead, self._partition, what, command, request, failure))
        return what

    def _may(self, request: DeadLetterRequest) -> bool:
        """Return whether the dead letter may be resolved: once, and those of a blocked key in order."""
        if not self.keeps_order or not is_of(self._names.inputs, request):
            return False
        if not request.ordered:
            return request.place not in self._resolved
        row = self._blocked.get(request.key or b"")
        if row is None or not row.first <= request.place <= row.last:
            return False
        return request.previous == row.settled

    def _resolve(self, request: DeadLetterRequest) -> None:
        if not request.ordered:
            self._resolved[request.place] = 1
            return
        key = request.key or b""
        row = self._blocked[key]
        if row.waiting == 1:
            self._blocked.delete(key)
        else:
            self._blocked[key] = msgspec.structs.replace(row, settled=request.place, waiting=row.waiting - 1)

    # The transaction

    def close(self) -> dict[str, int]:
        """Close the transaction; return the counts of what it sent, by kind."""
        counts, self.counts, self.decided = self.counts, {}, False
        return counts

    def forget(self) -> None:
        """Roll back the open transaction; decisions remain."""
        self.counts, self.decided = {}, False

    def passed(self, positions: dict[str, int]) -> None:
        """Drop the decisions below these committed positions, because they have been carried out."""
        for topic, offset in list(self.decisions):
            if offset < positions.get(topic, 0):
                del self.decisions[topic, offset]

    def _send(self, why: str, sent: Sent) -> None:
        self.counts[why] = self.counts.get(why, 0) + 1
        if not self.muted:
            self._outputs.append(sent)


def dead_letter_book(
    tables: dict[str, PartitionTable[object, object]], names: Names | None, partition: int, outputs: list[Sent]
) -> DeadLetterBook | None:
    """Return None for a handler that declares no dead letters."""
    if BLOCKED_KEYS not in tables:
        return None
    return DeadLetterBook(tables, names or Names("unnamed", "input"), partition, outputs)


def undeclared_book(names: Names | None, partition: int, outputs: list[Sent], *, muted: bool) -> DeadLetterBook:
    """Return a book for a handler that declares no dead letters: it blocks no key and resolves none of them."""
    empty: dict[str, PartitionTable[Any, Any]] = {
        BLOCKED_KEYS: PartitionTable(Table(key=bytes, value=BlockedKey), BLOCKED_KEYS),
        RESOLVED: PartitionTable(Table(key=int, value=int), RESOLVED),
    }
    book = DeadLetterBook(empty, names or Names("unnamed", "input"), partition, outputs)
    book.keeps_order, book.muted = False, muted
    return book
