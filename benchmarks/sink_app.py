"""What `benchmarks.sink` measures: one row of a database for each record, and a total per account as state."""

from __future__ import annotations

import msgspec

from statehold import Handler, Record, Service, Sink, Table
from statehold.config import load


class Payment(msgspec.Struct, frozen=True, gc=False):
    id: int
    account: str
    amount: int


class Booked(msgspec.Struct, frozen=True, gc=False):
    """A row of `booked`."""

    id: int
    account: str
    amount: int
    total: int


class Booking(Handler[Payment]):
    totals = Table(key=str, value=int)
    booked = Sink("booked", value=Booked, key="id")

    def on_record(self, record: Record[Payment]) -> None:
        payment = record.value
        total = self.totals[payment.account] = self.totals.get(payment.account, 0) + payment.amount
        self.booked.put(Booked(payment.id, payment.account, payment.amount, total))


service = Service("booking", input="bench-payments", handler=Booking, settings=load())
