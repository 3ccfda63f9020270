"""A Czech bank's real transactions with its own balances: the outside oracle of the ledger.

See the data's README.
"""

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "berka_transactions.csv.gz"

needs_data = pytest.mark.skipif(not DATA.exists(), reason=f"the bank's data is not at {DATA}")

Day = tuple[int, int]
"""Account and date."""


class Row(NamedTuple):
    """One transaction; amounts in hellers, `movement` signed, `balance` the bank's own after it."""

    id: int
    account: int
    date: int
    type: str
    amount: int
    movement: int
    balance: int

    def record(self) -> tuple[bytes, bytes]:
        """Key and value on the input topic: the ledger does not get the balance."""
        reported = {
            "id": self.id,
            "account": self.account,
            "date": self.date,
            "type": self.type,
            "amount": self.amount,
        }
        return str(self.account).encode(), msgspec.json.encode(reported)


def rows() -> list[Row]:
    """All transactions in the order in which they were booked."""
    with gzip.open(DATA, "rt", newline="") as file:
        return [_row(line) for line in csv.DictReader(file, delimiter=";")]


def _row(line: dict[str, str]) -> Row:
    amount = hellers(line["amount"])
    return Row(
        id=int(line["trans_id"]),
        account=int(line["account_id"]),
        date=int(line["date"]),
        type=line["type"],
        amount=amount,
        movement=amount if line["type"] == "PRIJEM" else -amount,
        balance=hellers(line["balance"]),
    )


def hellers(text: str) -> int:
    """`-12.30` as -1230; exact, no floating point."""
    crowns, _, rest = text.partition(".")
    value = int(crowns.lstrip("-")) * 100 + int((rest + "00")[:2])
    return -value if text.startswith("-") else value


def running(transactions: Iterable[Row]) -> dict[int, list[dict[str, int]]]:
    """The ledger recomputed: each account's answers in order, from a balance of 0."""
    balances: dict[int, int] = defaultdict(int)
    answers: dict[int, list[dict[str, int]]] = defaultdict(list)
    for row in transactions:
        balances[row.account] += row.movement
        reported = {"id": row.id, "account": row.account, "date": row.date, "balance": balances[row.account]}
        answers[row.account].append(reported)
    return answers


class Agreement(NamedTuple):
    """Account-days on which the ledger moved as the bank says: within 0.20 crowns, exactly, of how many."""

    close: int
    exact: int
    days: int


def agreement(transactions: Iterable[Row], ends: dict[Day, int]) -> Agreement:
    """Hold the ledger's balance at the end of each account-day against the bank's.

    Followed from day to day: the bank's balance of the evening before, plus what the ledger moved on the
    day, against the bank's balance of that evening. Within a day the bank's order of booking is not always
    that of the rows, so the evening's balance is the day's balance that fits best.
    """
    bank: dict[Day, list[int]] = {}
    for row in transactions:
        bank.setdefault((row.account, row.date), []).append(row.balance)
    evening: dict[int, int] = defaultdict(int)
    ledger: dict[int, int] = defaultdict(int)
    close = exact = 0
    for day, balances in bank.items():
        account = day[0]
        reached = evening[account] + ends[day] - ledger[account]
        evening[account] = min(balances, key=lambda balance: abs(balance - reached))
        ledger[account] = ends[day]
        close += abs(evening[account] - reached) <= 20
        exact += evening[account] == reached
    return Agreement(close, exact, len(bank))
