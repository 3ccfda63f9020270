"""A service with two inputs and a sink: every record is a row, and each row depends on all before it."""

from __future__ import annotations

import os

import msgspec

from statehold import Handler, Record, Service, Sink, Table, on
from statehold.config import load

PREFIX = os.environ.get("JOURNAL_PREFIX", "")
ORDERS, CANCELS, REFUNDS = f"{PREFIX}orders", f"{PREFIX}cancels", f"{PREFIX}refunds"


class Amount(msgspec.Struct, frozen=True):
    value: int


class Entry(msgspec.Struct, frozen=True):
    number: int
    input: str
    link: int


class Journal(Handler[Amount]):
    last = Table(key=int, value=Entry)
    entries = Sink("entries", value=Entry, key="number")

    @on(ORDERS, value=Amount)
    def on_order(self, record: Record[Amount]) -> None:
        self._enter(record, 31)

    @on(CANCELS, value=Amount)
    def on_cancel(self, record: Record[Amount]) -> None:
        self._enter(record, 37)

    def _enter(self, record: Record[Amount], factor: int) -> None:
        before = self.last.get(0, Entry(0, "", 7))
        link = (before.link * factor + record.value.value + record.offset) % 1_000_003
        entry = self.last[0] = Entry(before.number + 1, record.topic, link)
        self.entries.put(entry)


class LaterJournal(Journal):
    """The next release, which reads a third input."""

    @on(REFUNDS, value=Amount)
    def on_refund(self, record: Record[Amount]) -> None:
        self._enter(record, 41)


service = Service("journal", inputs=[ORDERS, CANCELS], handler=Journal, settings=load())
later = Service("journal", inputs=[ORDERS, CANCELS, REFUNDS], handler=LaterJournal, settings=load())
