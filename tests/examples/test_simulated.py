"""The examples survive a crash, a takeover and an aborted transaction at every step, and rebalances."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from examples.clearing.app import Clearing
from examples.clearing.domain import Fill
from examples.clearing.market import trades
from examples.clearing.oracle import Books
from examples.ledger.app import Ledger, Transaction
from examples.risk.app import Price, Risk
from examples.risk.market import LIMITS, ticks

from statehold.testing import Driver
from statehold.testing.simulation import InputRecord, SimulatedCluster


def test_clearing_survives_a_crash_at_every_step() -> None:
    assert Driver(Clearing).fuzz_crashes(trades(6, seed=7, accounts=2), most=120) > 60


def test_the_ledger_survives_a_crash_at_every_step() -> None:
    rows = [Transaction(number, 1 + number % 2, 930101 + number, "PRIJEM", 100 * number) for number in range(5)]
    assert Driver(Ledger).fuzz_crashes(rows, most=120) > 60


def risk_records() -> Iterator[InputRecord]:
    """Limits before everything else, then trades and prices."""
    for account, limit in LIMITS.items():
        yield InputRecord(0.0, 0, msgspec.json.encode(limit), account.encode(), "limits")
    for number, (_, record, _) in enumerate(ticks(2, seed=3, begin=0)):
        topic = "prices" if isinstance(record, Price) else "trades"
        yield InputRecord(1.0 + number / 5, 0, msgspec.json.encode(record), None, topic)


def test_risk_survives_a_crash_at_every_step() -> None:
    assert Driver(Risk).fuzz_crashes(risk_records(), most=120) > 60


def test_clearing_in_three_processes_of_which_two_end() -> None:
    made = list(trades(60, seed=5, accounts=6))
    with SimulatedCluster(Clearing, processes=3, partitions=3) as cluster:
        for number, trade in enumerate(made):
            cluster.feed(trade, key=trade.account, partition=int(trade.account[-1]) % 3)
            if number == 20:
                cluster.run()
                cluster.kill("a")
            if number == 40:
                cluster.advance(1.0)
                cluster.halt("b", 20.0)
        cluster.run()
        found: list[Fill] = cluster.outputs("fills")
    books = Books()
    for trade in made:
        books.book(msgspec.json.encode(trade))
    for account, fills in books.fills.items():
        assert [msgspec.to_builtins(fill) for fill in found if fill.account == account] == fills
    assert len(found) == len(made)
