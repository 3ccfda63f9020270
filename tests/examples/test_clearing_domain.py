from examples.clearing.domain import OPENING_CASH, Account, Position
from hypothesis import given
from hypothesis import strategies as st

LOTS = st.integers(-100, 100).filter(bool)
PRICE = st.integers(1, 100_000)


def test_a_buy_opens_at_its_price() -> None:
    assert Position().trade(10, 500) == Position(quantity=10, cost=5_000)


def test_more_of_the_same_raises_the_average() -> None:
    position = Position().trade(10, 500).trade(10, 700)
    assert (position.quantity, position.average, position.realised) == (20, 600, 0)


def test_closing_a_part_realises_at_average_cost() -> None:
    position = Position().trade(10, 500).trade(-4, 600)
    assert position == Position(quantity=6, cost=3_000, realised=400)


def test_a_short_gains_when_bought_back_lower() -> None:
    assert Position().trade(-10, 500).trade(10, 450) == Position(quantity=0, cost=0, realised=500)


def test_a_trade_through_zero_closes_and_opens() -> None:
    assert Position().trade(10, 500).trade(-15, 600) == Position(quantity=-5, cost=-3_000, realised=1_000)


def test_a_call_lasts_until_cash_covers_the_margin() -> None:
    flat = Position()
    large = flat.trade(1_000, 10 * OPENING_CASH // 1_000 + 10)
    called = Account().settle(flat, large)
    assert called.called
    assert not called.settle(large, flat).called


@given(st.lists(st.tuples(LOTS, PRICE), max_size=30))
def test_no_cent_appears_or_vanishes(trades: list[tuple[int, int]]) -> None:
    """Cash paid for all trades is what is open at cost less what was realised, whatever the rounding."""
    position = Position()
    for lots, price in trades:
        position = position.trade(lots, price)
    assert position.quantity == sum(lots for lots, _ in trades)
    assert position.cost - position.realised == sum(lots * price for lots, price in trades)
    assert position.quantity * position.cost >= 0
