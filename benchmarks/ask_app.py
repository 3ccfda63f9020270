"""What `benchmarks.ask` asks: a total per account, and its new value as the answer."""

from __future__ import annotations

import os
from datetime import timedelta

import msgspec

from statehold import Handler, Record, Replies, Service, Table
from statehold.config import load


class Payment(msgspec.Struct, frozen=True, gc=False):
    account: str
    amount: int


class Booked(msgspec.Struct, frozen=True, gc=False):
    balance: int
    number: int


class Payments(Handler[Payment]):
    balances = Table(key=str, value=Booked)
    replies = Replies(Booked, keep=timedelta(hours=1))

    def on_record(self, record: Record[Payment]) -> None:
        payment = record.value
        before = self.balances.get(payment.account, Booked(0, 0))
        booked = Booked(before.balance + payment.amount, before.number + 1)
        self.balances[payment.account] = booked
        record.reply(booked)


service = Service("asked", input=os.environ.get("BENCH_INPUT", "bench-asked"), handler=Payments, settings=load())
