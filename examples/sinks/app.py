"""Balances in PostgreSQL: each payment moves an account, and the table shows what the service's state says.

statehold dev up
statehold topics create examples.sinks.app:service --start-at beginning --partitions 2
psql "$STATEHOLD_SINK__URL" -f examples/sinks/tables.sql
statehold sink init examples.sinks.app:service
statehold run examples.sinks.app:service

`python -m examples.sinks.demo` does all of it with a broker and a database of its own, kills the service, and compares.
"""

from __future__ import annotations

import msgspec

from statehold import Handler, Record, Service, Sink, Table
from statehold.config.load import load


class Payment(msgspec.Struct, frozen=True):
    """The record's key is the account, so that an account's payments are in one partition and in order."""

    account: str
    amount: int


class Account(msgspec.Struct, frozen=True):
    """A row of `accounts`: the sum of its payments, in cents, and how many there were."""

    account: str
    balance: int = 0
    payments: int = 0


class Booking(msgspec.Struct, frozen=True):
    """A row of `bookings`: one for each payment; the number counts those of its account."""

    account: str
    number: int
    amount: int


class Payments(Handler[Payment]):
    """The state decides, the database shows: it is written, never read."""

    states = Table(key=str, value=Account)
    accounts = Sink("accounts", value=Account, key="account")
    bookings = Sink("bookings", value=Booking, key=("account", "number"))

    def on_record(self, record: Record[Payment]) -> None:
        """Both rows become visible with the position, in one transaction of the database."""
        payment = record.value
        before = self.states.get(payment.account, Account(payment.account))
        after = Account(payment.account, before.balance + payment.amount, before.payments + 1)
        self.states[payment.account] = after
        self.accounts.put(after)
        self.bookings.put(Booking(payment.account, after.payments, payment.amount))


service = Service("balances", input="payments", handler=Payments, settings=load())

if __name__ == "__main__":
    service.run()
