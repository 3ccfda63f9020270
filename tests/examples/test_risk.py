"""The risk example: the handler in the driver, its verifier with planted defects, and the demo on a real broker."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import chain

import msgspec
import pytest
from examples.proof import Event, compare_events
from examples.risk.app import Alert, Candle, Exposure, Price, Risk, Trade
from examples.risk.market import LIMITS, ticks
from examples.risk.verify import Books
from examples.running import ROOT
from examples.topics import Raw

from statehold.testing import Driver

Arrival = tuple[str, Trade | Price, int]
IDENTITY = {"exposures": "id", "alerts": "id", "candles": "start"}
OUTPUTS = tuple(IDENTITY)


def rank(arrival: Arrival) -> tuple[int, bool]:
    """Return the place in a merge by timestamp, trades before prices."""
    return arrival[2], isinstance(arrival[1], Price)


def process(arrivals: list[Arrival], crash_after: int = 0) -> Driver:
    driver = Driver(Risk)
    for account, limit in LIMITS.items():
        driver.publish("limits", account, limit)
    for number, (key, value, timestamp) in enumerate(arrivals, 1):
        topic = "prices" if isinstance(value, Price) else "trades"
        driver.feed(value, key, timestamp=timestamp, input=topic)
        if number == crash_after:
            driver.crash()
            driver.restore()
    return driver


def expected(arrivals: list[Arrival]) -> Books:
    def raw(kind: type[Trade | Price]) -> list[Raw]:
        return [Raw(key, msgspec.json.encode(value), at) for key, value, at in arrivals if isinstance(value, kind)]

    return Books(LIMITS).run(raw(Trade), raw(Price))


def differing(driver: Driver, books: Books) -> set[str]:
    """Return the outputs in which the verifier finds a difference."""
    different = set()
    for name in OUTPUTS:
        seen: dict[str, list[Event]] = defaultdict(list)
        for record in driver.sent(name):
            key = record.key.decode() if isinstance(record.key, bytes) else str(record.key)
            seen[key].append(msgspec.to_builtins(record.value))
        if not compare_events(name, books.outputs[name], seen, IDENTITY[name]).ok:
            different.add(name)
    return different


@pytest.fixture(scope="module")
def market() -> list[Arrival]:
    return sorted(ticks(500, seed=3, begin=0), key=rank)


def test_an_account_above_its_limit_is_reported_once() -> None:
    driver = Driver(Risk)
    driver.publish("limits", "ACC", 1_000)
    for value in (Price(1, "GOLD", 10), Trade(2, "ACC", "GOLD", -90), Price(3, "GOLD", 12), Price(4, "GOLD", 13)):
        driver.feed(value, "METALS", timestamp=value.id * 1000, input="prices" if type(value) is Price else "trades")
    assert driver.outputs("exposures") == [Exposure(2, "ACC", 900)]
    assert driver.outputs("alerts") == [Alert(3, "ACC", 1_080, 1_000)]
    driver.feed(Trade(5, "ACC", "GOLD", 80), "METALS", timestamp=60_000, input="trades")
    assert driver.table("exposures") == {"ACC": 130}
    assert driver.outputs("candles") == [Candle(start=0, open=10, high=13, low=10, close=13, count=3)]


def test_the_service_agrees_with_the_verifier_across_a_crash(market: list[Arrival]) -> None:
    driver, books = process(market, crash_after=1_300), expected(market)
    assert differing(driver, books) == set()
    assert all(driver.outputs(name) for name in OUTPUTS)
    tables = books.tables()
    assert msgspec.to_builtins(driver.table("candles")) == tables["candles"]
    assert {name: driver.table(name) for name in ("prices", "lots", "exposures")} == {
        name: tables[name] for name in ("prices", "lots", "exposures")
    }


def without_a_price(market: list[Arrival]) -> list[Arrival]:
    place = next(n for n, each in enumerate(market) if n > 1_300 and isinstance(each[1], Price))
    return market[:place] + market[place + 1 :]


def with_a_trade_twice(market: list[Arrival]) -> list[Arrival]:
    place = next(n for n, each in enumerate(market) if n > 1_300 and isinstance(each[1], Trade))
    return list(chain(market[: place + 1], market[place:]))


def prices_before_trades(market: list[Arrival]) -> list[Arrival]:
    return sorted(market, key=lambda each: (each[2], isinstance(each[1], Trade)))


@pytest.mark.parametrize(
    ("defect", "output"),
    [(without_a_price, "candles"), (with_a_trade_twice, "exposures"), (prices_before_trades, "exposures")],
)
def test_the_verifier_finds(
    defect: Callable[[list[Arrival]], list[Arrival]], output: str, market: list[Arrival]
) -> None:
    assert output in differing(process(defect(market)), expected(market))


@pytest.mark.long
@pytest.mark.kafka
def test_nothing_is_lost_in_the_demo() -> None:
    command = [sys.executable, "-m", "examples.risk.demo", "--ticks", "2000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["demo ok"]), done.stdout + done.stderr
    assert "exposures: 2,000 of 2,000, 0 lost, 0 duplicated" in done.stdout
