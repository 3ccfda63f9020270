"""A ledger that re-keys: each trade moves money between two accounts of other partitions, so the sum stays zero."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from tests.chaos.rows import Row
from tests.chaos.workload import ACCOUNTS, Sent, Trade

from statehold import Handler, Output, Record, Rekey, Table, on
from statehold.bound.output import origin_of

#: points of a run at which the sum is taken
POINTS = 40


class Movement(msgspec.Struct, frozen=True):
    """What a trade does to one account."""

    id: str
    amount: int


class Account(msgspec.Struct, frozen=True):
    """An account's total and number of movements."""

    total: int = 0
    count: int = 0


class Moved(msgspec.Struct, frozen=True):
    """The answer to one movement: the account's total and number after it, and the transaction that has sent it."""

    id: str
    account: str
    total: int
    count: int
    amount: int
    #: input partition and transaction
    sender: tuple[int, int]


def movements(trade: Trade) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return what a trade does: account and amount, two times."""
    other = f"a{(int(trade.id[1:]) * 7 + 1) % ACCOUNTS}"
    return (trade.account, -trade.amount), (other, trade.amount)


def rekeyed(topic: str, output: str) -> type[Handler[None]]:
    """The handler: a trade is in the partition of its own key, each account in that of its name."""

    class Moving(Handler[None]):
        by_account = Rekey("by_account", key=str, value=Movement)
        accounts = Table(key=str, value=Account)
        answers = Output(output, value=Moved, key=str)

        @on(topic, value=Trade)
        def trade(self, record: Record[Trade]) -> None:
            for account, amount in movements(record.value):
                self.by_account.send(Movement(record.value.id, amount), key=account)

        @on(by_account)
        def move(self, record: Record[Movement, str]) -> None:
            account, movement = record.key, record.value
            before = self.accounts.get(account, Account())
            after = self.accounts[account] = Account(before.total + movement.amount, before.count + 1)
            origin = origin_of(record.headers)
            assert origin is not None
            sender = origin.partition, origin.n
            answer = Moved(movement.id, account, after.total, after.count, movement.amount, sender)
            self.answers.send(answer, key=account)

    return Moving


#: (anomaly, its cases)
Found = Callable[[str, Sequence[str]], None]


def check_moves(add: Found, inputs: Mapping[int, Sequence[Sent]], rows: Sequence[Row], seed: int) -> None:
    """Every movement once, in the partition of its account; each total is that before and the amount."""
    decode = msgspec.json.Decoder(Moved).decode
    answers = [(decode(row.value), row) for row in sorted(rows, key=lambda row: (row.partition, row.offset))]
    due = Counter(
        (sent.trade.id, *each) for sents in inputs.values() for sent in sents for each in movements(sent.trade)
    )
    seen = Counter((answer.id, answer.account, answer.amount) for answer, _ in answers)
    add("lost", [str(each) for each in due - seen])
    add("duplicated", [f"{each} x {seen[each]}" for each in seen - due if each in due])
    add("foreign", [str(each) for each in seen if each not in due])
    _check_accounts(add, answers)
    check_sums(add, answers, seed)


def _check_accounts(add: Found, answers: Sequence[tuple[Moved, Row]]) -> None:
    home, last, sent = defaultdict[str, set[Any]](set), dict[str, Moved](), dict[tuple[str, int], int]()
    for answer, row in answers:
        account, before = answer.account, last.get(answer.account)
        home[account].add((row.partition, row.origin[0] if row.origin is not None else -1))
        total, count = (0, 0) if before is None else (before.total, before.count)
        if (answer.total, answer.count) != (total + answer.amount, count + 1):
            add("wrong value", [f"{answer} after {before}"])
        last[account] = answer
        partition, transaction = answer.sender
        if transaction < sent.get((account, partition), 0):
            add("reordered", [f"{answer} after transaction {sent[account, partition]} of its sender"])
        sent[account, partition] = transaction
    add("split key", [f"{account} in {places}" for account, places in home.items() if len(places) > 1])
    if total := sum(each.total for each in last.values()):
        add("sum", [f"{total} in the end"])


def check_sums(add: Found, answers: Sequence[tuple[Moved, Row]], seed: int) -> None:
    """At each consistent point, the totals and what is on its way are zero together.

    A point is a transaction of each partition, and consistent if it has no movement whose sender is behind it.
    """
    draw = random.Random(f"sums {seed}")
    handled = [(answer, row.origin[:2]) for answer, row in answers if row.origin is not None]
    ends = defaultdict[int, set[int]](set)
    for answer, at in handled:
        for partition, transaction in (answer.sender, at):
            ends[partition].add(transaction)
    for _ in range(POINTS if ends else 0):
        point = {partition: draw.choice(sorted(numbers)) for partition, numbers in ends.items()}
        _make_consistent(point, handled)
        totals, on_the_way = dict[str, int](), 0
        for answer, (partition, transaction) in handled:
            if transaction <= point[partition]:
                totals[answer.account] = answer.total
            elif answer.sender[1] <= point[answer.sender[0]]:
                on_the_way += answer.amount
        if sum(totals.values()) + on_the_way:
            add("sum", [f"{sum(totals.values())} and {on_the_way} on the way at {point}"])


def _make_consistent(point: dict[int, int], handled: Sequence[tuple[Moved, tuple[int, int]]]) -> None:
    changed = True
    while changed:
        changed = False
        for answer, (partition, transaction) in handled:
            sender, number = answer.sender
            if transaction <= point[partition] and number > point[sender]:
                point[partition], changed = transaction - 1, True
