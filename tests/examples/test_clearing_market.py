from collections import Counter
from itertools import islice, pairwise

import msgspec
from examples.clearing.domain import Trade
from examples.clearing.market import INSTRUMENTS, LOWEST_PRICE, trades


def test_the_same_seed_is_the_same_market() -> None:
    assert list(trades(500, seed=3)) == list(trades(500, seed=3))
    assert list(trades(500, seed=3)) != list(trades(500, seed=4))


def test_a_longer_market_begins_like_a_shorter_one() -> None:
    assert list(islice(trades(10_000, seed=3), 500)) == list(trades(500, seed=3))


def test_ids_count_up_and_values_are_sane() -> None:
    market = list(trades(20_000, seed=1, accounts=50))
    assert [trade.id for trade in market] == list(range(20_000))
    assert all(1 <= trade.quantity <= 100 and trade.price >= LOWEST_PRICE for trade in market)
    assert {trade.instrument for trade in market} == set(INSTRUMENTS)
    assert len({trade.account for trade in market}) == 50
    sides = Counter(trade.side for trade in market)
    assert abs(sides["buy"] - sides["sell"]) < 1_000


def test_a_price_walks_by_small_steps() -> None:
    gold = [trade.price for trade in trades(20_000, seed=1) if trade.instrument == "GOLD"]
    assert max(abs(after - before) for before, after in pairwise(gold)) <= 20


def test_a_trade_is_small_json() -> None:
    first = next(trades(1, seed=1))
    raw = msgspec.json.encode(first)
    assert len(raw) < 130
    assert msgspec.json.decode(raw, type=Trade) == first
