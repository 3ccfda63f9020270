"""Balances in PostgreSQL: each payment changes an account's state, and the tables show that state.

statehold dev up
statehold topics create examples.sinks.app:service --start-at beginning --partitions 2
psql "$STATEHOLD_SINK__URL" -f examples/sinks/tables.sql
statehold sink init examples.sinks.app:service
statehold run examples.sinks.app:service

`python -m examples.sinks.demo` does this with its own broker and database, kills the service, and compares the result.
"""

from __future__ import annotations

import msgspec

from statehold import Handler, Record, Service, Sink, Table
from statehold.config import load


class Payment(msgspec.Struct, frozen=True):
    """A payment. The record's key is the account, so an account's payments are in one partition and in order."""

    account: str
    amount: int


class Account(msgspec.Struct, frozen=True):
    """A row of `accounts`: the sum of its payments in cents, and their number."""

    account: str
    balance: int = 0
    payments: int = 0


class Booking(msgspec.Struct, frozen=True):
    """A row of `bookings`: one per payment, numbered by account."""

    account: str
    number: int
    amount: int


class Payments(Handler[Payment]):
    """Computes balances from the state. The database is written, never read."""

    states = Table(key=str, value=Account)
    accounts = Sink("accounts", value=Account, key="account")
    bookings = Sink("bookings", value=Booking, key=("account", "number"))

    def on_record(self, record: Record[Payment]) -> None:
        """Put both rows; they become visible with the position, in one database transaction."""
        payment = record.value
        before = self.states.get(payment.account, Account(payment.account))
        after = Account(payment.account, before.balance + payment.amount, before.payments + 1)
        self.states[payment.account] = after
        self.accounts.put(after)
        self.bookings.put(Booking(payment.account, after.payments, payment.amount))


service = Service("balances", input="payments", handler=Payments, settings=load())

if __name__ == "__main__":
    service.run()
