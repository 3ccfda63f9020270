"""The ledger without Kafka, on the bank's own 49,102 transactions, held against the bank's balances."""

import msgspec
import pytest
from examples.ledger.app import Ledger, Transaction
from tests.examples.bank import Day, agreement, hellers, needs_data, rows, running

from statehold.testing import Driver


def test_money_is_read_exactly() -> None:
    assert [hellers(text) for text in ("700.00", "0.1", "-12.30", "5")] == [70_000, 10, -1_230, 500]


def test_a_credit_and_a_debit() -> None:
    driver = Driver(Ledger)
    driver.feed(Transaction(1, 1, 930101, "PRIJEM", 70_000), key="1")
    driver.feed(Transaction(2, 1, 930101, "VYDAJ", 20_000), key="1")
    assert [event.balance for event in driver.outputs("booked")] == [70_000, 50_000]
    assert driver.table("accounts")[1].entries == 2
    assert driver.table("turnover")[930101].debit == 20_000


@needs_data
@pytest.mark.slow
def test_the_ledger_agrees_with_the_bank() -> None:
    transactions = rows()
    driver = Driver(Ledger)
    for number, row in enumerate(transactions):
        driver.feed(msgspec.json.decode(row.record()[1], type=Transaction), key=str(row.account))
        if number in (10_000, 30_000):
            driver.crash()
            driver.restore()
    answers = driver.outputs("booked")
    ends: dict[Day, int] = {(answer.account, answer.date): answer.balance for answer in answers}
    assert len(answers) == len(transactions) == 49_102
    assert agreement(transactions, ends) == (39_932, 37_703, 39_960)
    last = {account: reported[-1]["balance"] for account, reported in running(transactions).items()}
    assert {account: driver.table("accounts")[account].balance for account in last} == last


@needs_data
@pytest.mark.parametrize("damage", ["lost", "doubled"])
def test_one_record_lost_or_doubled_shows(damage: str) -> None:
    transactions = rows()
    changed = transactions[:20_000] + transactions[20_001 if damage == "lost" else 19_999 :]
    ends = {(a["account"], a["date"]): a["balance"] for reported in running(changed).values() for a in reported}
    whole = {(a["account"], a["date"]): a["balance"] for reported in running(transactions).values() for a in reported}
    assert agreement(transactions, whole | ends) != (39_932, 37_703, 39_960)
