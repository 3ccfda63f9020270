"""Dead letters of one partition: which records become one, what they leave in the state, and their way back.

A decision to bury a record is taken once, by `worker.failing`, and belongs to the running transaction alone: whoever
restores finds it in a delta and never asks again (docs/design.md, "Failing records"). That later records of a parked
key follow is decided by the state, so a replay decides alike.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from statehold.common.names import Names
from statehold.messages.command import COMMAND_HEADER, Command
from statehold.messages.dead_letter import (
    DISCARD,
    DISCARDED,
    FAILED_AGAIN,
    PARKED,
    REPLAYED,
    SETTLED,
    BlockedKey,
    DeadLetterRequest,
    Failure,
    RedrivenMessage,
    letter,
    request_of,
    trace,
)
from statehold.messages.retry_record import retried
from statehold.output import Sent
from statehold.record import Message
from statehold.table import Table


class FailureDecision(msgspec.Struct, frozen=True, array_like=True):
    """What a record that failed is to become when it comes again."""

    failure: Failure
    #: of the retry topic, and when it is due there (milliseconds since 1970); 0: it is a dead letter
    delay: float = 0.0
    level: int = 0
    due: int = 0


def at(message: Message) -> tuple[str, int]:
    """By what a decision is found."""
    return message.topic() or "", message.offset() or 0


class Letters:
    """One engine's; used by the partition's thread."""

    def __init__(
        self, tables: dict[str, Table[object, object]], names: Names, partition: int, outputs: list[Sent]
    ) -> None:
        self._parked: Table[bytes, BlockedKey] = tables[PARKED]  # type: ignore[assignment]
        self._settled: Table[int, int] = tables[SETTLED]  # type: ignore[assignment]
        self._names, self._dead, self._partition, self._outputs = names, names.dead, partition, outputs
        self.muted = False
        #: of records that come again, by topic and offset
        self.decisions: dict[tuple[str, int], FailureDecision] = {}
        #: the open transaction holds what a replay would not decide again: it takes a delta
        self.decided = False
        #: letters of the open transaction, by why
        self.counts: dict[str, int] = {}

    @property
    def active(self) -> bool:
        """Some record may be none for the handler: there is a parked key, or a decision."""
        return self._parked.used or bool(self.decisions)

    @property
    def keys(self) -> int:
        """BlockedKey keys, as committed."""
        return len(self._parked.stored)

    def takes(self, message: Message) -> bool:
        """Whether this record goes to the letters and not to the handler."""
        if at(message) in self.decisions:
            return True
        key = message.key()
        if key is None or key not in self._parked:
            return False
        return not any(name == COMMAND_HEADER for name, _ in message.headers() or ())

    def take(self, message: Message) -> None:
        """It failed and its decision is known, or its key is parked."""
        decision = self.decisions.get(at(message))
        if decision is None:
            self._follow(message)
        else:
            self.carry_out(decision, message)

    def carry_out(self, decision: FailureDecision, message: Message) -> None:
        """Bury it, or send it on its way to be tried later."""
        self.decided = True
        if decision.delay:
            topic = self._names.retry(decision.delay)
            self._send("retried_later", retried(topic, message, decision.failure, decision.level, decision.due))
        else:
            self._bury(message, decision.failure)

    def _follow(self, message: Message) -> None:
        key, offset = message.key(), message.offset() or 0
        row = self._parked[key]
        failure = Failure(row.error, f"its key waits since offset {row.first}", 0, ordered=True)
        self._send("followed", letter(self._dead, message, "followed", failure, row.last))
        self._parked[key] = msgspec.structs.replace(row, last=offset, waiting=row.waiting + 1)

    def _bury(self, message: Message, failure: Failure) -> None:
        """A record without a key is in nobody's way."""
        key, offset = message.key(), message.offset() or 0
        ordered, previous = failure.ordered and key is not None, -1
        if ordered:
            row = self._parked.get(key)
            if row is not None:  # parked by a decision of this very transaction
                previous = row.last
                self._parked[key] = msgspec.structs.replace(row, last=offset, waiting=row.waiting + 1)
            else:
                self._parked[key] = BlockedKey(offset, offset, error=failure.error)
        noted = msgspec.structs.replace(failure, ordered=ordered)
        self._send("raised", letter(self._dead, message, "raised", noted, previous))

    def handled(self) -> None:
        """The handler was given a record of a retry topic: no replay finds it in the input's order again."""
        self.decided = True
        self.counts["retried"] = self.counts.get("retried", 0) + 1

    # The way back: commands of the control topic

    def obey(self, command: Command, message: Message, run: Callable[[Message], None]) -> str:
        """Replay or discard one letter; what came of it, '' where it is not this letter's turn.

        Raises what `run` raises.
        """
        request = request_of(message)
        if not self._may(request):
            return ""
        self.decided = True
        decision = self.decisions.get(at(message))
        what = DISCARDED if command.name == DISCARD else REPLAYED
        if decision is not None:
            what = FAILED_AGAIN
        elif what == REPLAYED:
            run(RedrivenMessage(self._names.input, self._partition, request))
        if what != FAILED_AGAIN:
            self._settle(request)
        failure = decision.failure if decision is not None else None
        self._send(what, trace(self._dead, self._partition, what, command, request, failure))
        return what

    def _may(self, request: DeadLetterRequest) -> bool:
        """A letter is settled once, and those of a parked key one after the other."""
        if not request.ordered:
            return request.offset not in self._settled
        row = self._parked.get(request.key or b"")
        if row is None or not row.first <= request.offset <= row.last:
            return False
        return request.previous == row.settled

    def _settle(self, request: DeadLetterRequest) -> None:
        if not request.ordered:
            self._settled[request.offset] = 1
            return
        key = request.key or b""
        row = self._parked[key]
        if row.waiting == 1:
            self._parked.delete(key)
        else:
            self._parked[key] = msgspec.structs.replace(row, settled=request.offset, waiting=row.waiting - 1)

    # The transaction

    def close(self) -> dict[str, int]:
        """The transaction takes no more: what it sent, by why."""
        counts, self.counts, self.decided = self.counts, {}, False
        return counts

    def forget(self) -> None:
        """The open transaction is undone; decisions stand."""
        self.counts, self.decided = {}, False

    def passed(self, positions: dict[str, int]) -> None:
        """These positions have committed: decisions below them have been carried out."""
        self.decisions = {
            place: decision for place, decision in self.decisions.items() if place[1] >= positions.get(place[0], 0)
        }

    def _send(self, why: str, sent: Sent) -> None:
        self.counts[why] = self.counts.get(why, 0) + 1
        if not self.muted:
            self._outputs.append(sent)


def letters_of(
    tables: dict[str, Table[object, object]], names: Names | None, partition: int, outputs: list[Sent]
) -> Letters | None:
    """None for a handler whose records cannot become letters."""
    if PARKED not in tables:
        return None
    return Letters(tables, names or Names("unnamed", "input"), partition, outputs)
