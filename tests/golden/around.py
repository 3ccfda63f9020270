"""A service that uses what stands around a record, of which golden files were written. Never change it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from tests.golden.bank_v1 import Move

from statehold import Dedupe, Handler, Output, Record, Table, Timer, dead_letter
from statehold.errors import UndecodableRecord


class Refused(ValueError):
    """This account may owe no more."""


class Around(Handler[Move]):
    """Duplicates, a table whose rows expire, timers, pending effects, and keys that wait behind a dead letter."""

    system_prefix = "holdfast."
    on_failure: ClassVar = {Refused: dead_letter(), UndecodableRecord: dead_letter()}
    accounts = Table(key=str, value=int)
    lately = Table(key=str, value=int, ttl=timedelta(seconds=20))
    seen = Dedupe(key=str, ttl=timedelta(seconds=30))
    answers = Output("answers", value=str)

    def on_record(self, record: Record[Move]) -> None:
        move = record.value
        if self.seen.seen(f"{move.account}/{move.cents}"):
            return
        cents = self.accounts.get(move.account, 0) + move.cents
        if cents < -4000:
            raise Refused(move.account)
        self.accounts[move.account] = cents
        self.lately[move.account] = move.cents
        self.schedule(record.now + timedelta(seconds=7), move.account, id=move.account)
        if move.close:
            self.effect(tell, move.account)
        self.answers.send(f"{move.account} {cents}", key=move.account)

    def on_timer(self, timer: Timer) -> None:
        payload: Any = timer.payload
        self.answers.send(f"{payload} is quiet", key=payload)


def tell(key: Any, account: str) -> None:
    """No server listens, so that it stays pending."""
    raise ConnectionError(f"{account} {key}")
