"""A ledger whose transfers move money between accounts of other partitions: the sum of all accounts is zero."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from statehold import Handler, Output, Record, Rekey, Table, on


class Transfer(msgspec.Struct, frozen=True):
    source: str
    target: str
    amount: int


class Movement(msgspec.Struct, frozen=True):
    amount: int


class LedgerBase(Handler[None]):
    """Without the topic of its input."""

    by_account = Rekey("by_account", key=str, value=Movement)
    totals = Table(key=str, value=int)
    moved = Output("moved", value=int)

    def split(self, record: Record[Transfer]) -> None:
        transfer = record.value
        self.by_account.send(Movement(-transfer.amount), key=transfer.source)
        self.by_account.send(Movement(transfer.amount), key=transfer.target)

    @on(by_account)
    def move(self, record: Record[Movement, str]) -> None:
        account = record.key
        total = self.totals[account] = self.totals.get(account, 0) + record.value.amount
        self.moved.send(total, key=account)


class Ledger(LedgerBase):
    """A transfer is in the partition of its own key, each account in that of its name."""

    @on("transfers", value=Transfer)
    def transfer(self, record: Record[Transfer]) -> None:
        self.split(record)


def ledger(topic: str, output: str) -> type[LedgerBase]:
    """Return the handler with other topics."""

    class Named(LedgerBase):
        moved = Output(output, value=int)

        @on(topic, value=Transfer)
        def transfer(self, record: Record[Transfer]) -> None:
            self.split(record)

    return Named


def balances(transfers: Iterable[Transfer]) -> dict[str, int]:
    """Return the total of each account that occurs."""
    found: Counter[str] = Counter()
    for each in transfers:
        found[each.source] -= each.amount
        found[each.target] += each.amount
    return dict(found)


def check_moved(transfers: Iterable[Transfer], moved: Iterable[tuple[str, int]]) -> None:
    """Check outputs, in the order of each account: every movement once, each total made of the one before.

    :raises AssertionError:
    """
    expected: dict[str, Counter[int]] = defaultdict(Counter)
    for each in transfers:
        expected[each.source][-each.amount] += 1
        expected[each.target][each.amount] += 1
    found: dict[str, Counter[int]] = defaultdict(Counter)
    last: Counter[str] = Counter()
    for account, total in moved:
        found[account][total - last[account]] += 1
        last[account] = total
    assert found == expected, f"{dict(found)} instead of {dict(expected)}"
    assert sum(last.values()) == 0
