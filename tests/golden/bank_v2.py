"""The second release of the service of `bank_v1`: two tables have new values, two are as they were. Never change it."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.golden import bank_v1
from tests.golden.bank_v1 import Move

from statehold import Handler, Output, Record, Table


class Account(msgspec.Struct, frozen=True):
    """Whole and hundredths apart, a currency, and the number of moves under another name."""

    whole: int = 0
    hundredths: int = 0
    currency: str = "EUR"
    entries: int = 0


def account_from_v1(old: bank_v1.Account) -> Account:
    return Account(*divmod(old.cents, 100), "EUR", old.moves)


class Bank(Handler[Move]):
    """`accounts` is upcast by a typed function, `days` by a lambda."""

    accounts = Table(key=str, value=Account, version=2, upcasters={1: account_from_v1})
    days = Table(key=int, value=tuple[int, str], sorted=True, version=2, upcasters={1: lambda old: (old, "cents")})
    notes = Table(key=bytes, value=str)
    pairs = Table(key=tuple[str, int], value=tuple[int, float])
    answers = Output("answers", value=int)

    def on_record(self, record: Record[Move]) -> None:
        move = record.value
        before = self.accounts.get(move.account, Account())
        cents = 100 * before.whole + before.hundredths
        if move.close:
            self.accounts.delete(move.account)
            self.effect(closed, move.account)
        else:
            self.accounts[move.account] = Account(*divmod(cents + move.cents, 100), "EUR", before.entries + 1)
        self.days[move.day] = (self.days.get(move.day, (0, ""))[0] + move.cents, "cents")
        self.notes[record.key or b""] = f"{move.account}: {move.cents}"
        self.pairs[move.account, move.day] = (cents, move.cents / 100)
        self.answers.send(cents + move.cents, key=move.account)


def closed(key: Any, account: str) -> None:
    """Notify an external system."""
