"""Payments with policies for those that fail, and the desk that looks after the dead letters.

statehold dev up
statehold topics create examples.letters.app:service --start-at beginning --partitions 2
statehold topics create examples.letters.app:desk --start-at beginning
statehold run examples.letters.app:service
statehold run examples.letters.app:desk

Then send payments, some of them to a closed account, and look: `statehold dlq list examples.letters.app:service`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from statehold import Handler, Output, Record, Service, Table
from statehold.config.load import load
from statehold.errors import UndecodableRecord
from statehold.failures import dead_letter, retry


class Payment(msgspec.Struct, frozen=True):
    """The record's key is the account, so that an account's payments are in one partition and in order."""

    account: str
    amount: int


class Refused(ValueError):
    """This payment cannot be booked, however often it is tried."""


class Payments(Handler[Payment]):
    """Balances by account. A payment that is refused is put aside, and those of its account behind it follow."""

    on_failure: ClassVar = {
        Refused: dead_letter(),
        UndecodableRecord: dead_letter(),
        ConnectionError: retry(5, seconds=0.2).then(dead_letter()),
    }
    balances = Table(key=str, value=int)
    booked = Output("payments-booked", value=str)

    def on_record(self, record: Record[Payment]) -> None:
        """Book it: what it has written when it raises is undone."""
        payment = record.value
        balance = self.balances.get(payment.account, 0) + payment.amount
        self.balances[payment.account] = balance
        self.booked.send(f"{payment.account} {payment.amount:+d} = {balance}", key=payment.account)
        if balance < 0:
            raise Refused(f"{payment.account} has only {balance - payment.amount}")


class Case(msgspec.Struct, frozen=True):
    """What the desk knows of an account that waits: its letters by offset, and why the first one failed."""

    offsets: tuple[int, ...] = ()
    reason: str = ""


class Desk(Handler[bytes]):
    """Reads the dead letters as any other topic; what became of them comes as commands."""

    cases = Table(key=str, value=Case)

    def on_record(self, record: Record[bytes]) -> None:
        """A letter: the payment as it was received, with headers that say why it is here."""
        told = dict(record.headers)
        account, offset = (record.key or b"").decode(), int(told["statehold-dead-offset"])
        case = self.cases.get(account, Case())
        reason = case.reason or told["statehold-dead-text"].decode()
        self.cases[account] = Case((*case.offsets, offset), reason)

    def on_command(self, command: str, record: Record[bytes]) -> None:
        """A trace: the letter was replayed, discarded, or has failed again."""
        if command not in ("dlq-replayed", "dlq-discarded"):
            return
        account = (record.key or b"").decode()
        settled = int(dict(record.headers)["statehold-dead-offset"])
        case = self.cases.get(account, Case())
        left = tuple(offset for offset in case.offsets if offset != settled)
        if left:
            self.cases[account] = Case(left, case.reason)
        else:
            self.cases.delete(account)


service = Service("payments", input="payments", handler=Payments, settings=load())
desk = Service("desk", input=service.names.dead, handler=Desk, settings=load())
