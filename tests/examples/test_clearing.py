"""The clearing service without Kafka: the same handler, driven record by record."""

import msgspec
from examples.clearing.app import Clearing
from examples.clearing.domain import MARGIN_PERCENT, OPENING_CASH, Account, Position, Trade
from examples.clearing.market import trades
from examples.clearing.oracle import book_all
from examples.clearing.verify import tables

from statehold.testing import Driver


def buy(number: int, quantity: int, price: int, side: str = "buy") -> Trade:
    return msgspec.convert(
        {
            "id": number,
            "account": "ACC",
            "instrument": "GOLD",
            "side": side,
            "quantity": quantity,
            "price": price,
        },
        Trade,
    )


def test_a_trade_opens_a_position_and_reports_a_fill() -> None:
    driver = Driver(Clearing)
    driver.feed(buy(1, 10, 500), key="ACC")
    (fill,) = driver.outputs("fills")
    assert (fill.id, fill.quantity, fill.average, fill.realised) == (1, 10, 500, 0)
    assert driver.table("positions")["ACC/GOLD"] == Position(quantity=10, cost=5_000)
    assert driver.table("accounts")["ACC"] == Account(margin=5_000 * MARGIN_PERCENT // 100)


def test_one_call_for_one_breach() -> None:
    driver = Driver(Clearing)
    lots = OPENING_CASH * 100 // MARGIN_PERCENT // 1_000
    driver.feed(buy(1, lots, 1_000), key="ACC")
    assert driver.outputs("margin-calls") == []
    driver.feed(buy(2, 1, 1_000), key="ACC")
    driver.feed(buy(3, 1, 1_000), key="ACC")
    assert [call.id for call in driver.outputs("margin-calls")] == [2]
    driver.feed(buy(4, 10, 1_000, "sell"), key="ACC")
    driver.feed(buy(5, 20, 1_000), key="ACC")
    assert [call.id for call in driver.outputs("margin-calls")] == [2, 5]


def test_a_replay_in_other_batches_gives_the_same() -> None:
    driver = Driver(Clearing, batch=7)
    for trade in trades(1_000, seed=3, accounts=20):
        driver.feed(trade, key=trade.account)
    driver.replay()


def test_the_service_agrees_with_the_oracle_across_crashes() -> None:
    market = list(trades(20_000, seed=2, accounts=40))
    driver = Driver(Clearing)
    for trade in market:
        driver.feed(trade, key=trade.account)
        if trade.id % 6_000 == 5_999:
            driver.crash()
            driver.restore()
    books = book_all(map(msgspec.json.encode, market))
    fills = [fill for account in books.fills.values() for fill in account]
    assert sorted(map(msgspec.to_builtins, driver.outputs("fills")), key=lambda fill: fill["id"]) == sorted(
        fills, key=lambda fill: fill["id"]
    )
    for name, rows in tables(books).items():
        table = driver.table(name)
        assert {key: msgspec.to_builtins(table[key]) for key in table} == rows
