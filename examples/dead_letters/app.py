"""Payments with failure policies, and a desk that tracks the dead letters.

statehold dev up
statehold topics create examples.dead_letters.app:service --start-at beginning --partitions 2
statehold topics create examples.dead_letters.app:desk --start-at beginning
statehold run examples.dead_letters.app:service
statehold run examples.dead_letters.app:desk

Then send payments that overdraw some accounts, and run `statehold dlq list examples.dead_letters.app:service`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from statehold import Handler, Output, Record, Service, Table, dead_letter, retry
from statehold.config import load
from statehold.errors import UndecodableRecord


class Payment(msgspec.Struct, frozen=True):
    """A payment. The record's key is the account, so an account's payments are in one partition and in order."""

    account: str
    amount: int


class Refused(ValueError):
    """The payment cannot be booked; a retry does not help."""


class Payments(Handler[Payment]):
    """Balances by account. A rejected payment is dead-lettered, and blocks later payments of its account."""

    on_failure: ClassVar = {
        Refused: dead_letter(),
        UndecodableRecord: dead_letter(),
        ConnectionError: retry(5, seconds=0.2).then(dead_letter()),
    }
    balances = Table(key=str, value=int)
    booked = Output("payments-booked", value=str)

    def on_record(self, record: Record[Payment]) -> None:
        """Book the payment. If this method raises, its changes and outputs are rolled back."""
        payment = record.value
        balance = self.balances.get(payment.account, 0) + payment.amount
        self.balances[payment.account] = balance
        self.booked.send(f"{payment.account} {payment.amount:+d} = {balance}", key=payment.account)
        if balance < 0:
            raise Refused(f"{payment.account} has only {balance - payment.amount}")


class Case(msgspec.Struct, frozen=True):
    """A blocked account: the offsets of its dead letters, and the reason of the first one."""

    offsets: tuple[int, ...] = ()
    reason: str = ""


class Desk(Handler[bytes]):
    """Reads the dead letters like any other topic; their outcomes arrive as commands."""

    cases = Table(key=str, value=Case)

    def on_record(self, record: Record[bytes]) -> None:
        """Add a dead letter: the original payment, with headers for the failure."""
        headers = dict(record.headers)
        account, offset = (record.key or b"").decode(), int(headers["statehold-dead-offset"])
        case = self.cases.get(account, Case())
        reason = case.reason or headers["statehold-dead-text"].decode()
        self.cases[account] = Case((*case.offsets, offset), reason)

    def on_command(self, command: str, record: Record[bytes]) -> None:
        """Remove a dead letter that was redriven or discarded."""
        if command not in ("dlq-replayed", "dlq-discarded"):
            return
        account = (record.key or b"").decode()
        resolved = int(dict(record.headers)["statehold-dead-offset"])
        case = self.cases.get(account, Case())
        left = tuple(offset for offset in case.offsets if offset != resolved)
        if left:
            self.cases[account] = Case(left, case.reason)
        else:
            self.cases.delete(account)


service = Service("payments", input="payments", handler=Payments, settings=load())
desk = Service("desk", input=service.names.dead, handler=Desk, settings=load())
