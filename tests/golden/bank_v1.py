"""The first release of a small service, of which the golden files of format 1 were written. Never change it."""

from __future__ import annotations

from typing import Any

import msgspec

from statehold import Handler, Output, Record, Table


class Move(msgspec.Struct, frozen=True):
    """Money in or out of an account, in cents; `close` ends the account."""

    account: str
    cents: int
    day: int
    close: bool = False


class Account(msgspec.Struct, frozen=True):
    """Balance in cents after this number of moves."""

    cents: int = 0
    moves: int = 0


class Bank(Handler[Move]):
    """Tables with every kind of key, values of several kinds, deletions, outputs and side effects."""

    accounts = Table(key=str, value=Account)
    days = Table(key=int, value=int, sorted=True)
    notes = Table(key=bytes, value=str)
    pairs = Table(key=tuple[str, int], value=tuple[int, float])
    answers = Output("answers", value=int)

    def on_record(self, record: Record[Move]) -> None:
        move = record.value
        before = self.accounts.get(move.account, Account())
        if move.close:
            self.accounts.delete(move.account)
            self.effect(closed, move.account)
        else:
            self.accounts[move.account] = Account(before.cents + move.cents, before.moves + 1)
        self.days[move.day] = self.days.get(move.day, 0) + move.cents
        self.notes[record.key or b""] = f"{move.account}: {move.cents}"
        self.pairs[move.account, move.day] = (before.cents, move.cents / 100)
        self.answers.send(before.cents + move.cents, key=move.account)


def closed(key: Any, account: str) -> None:
    """Notify an external system."""
