"""Small inputs: those on which all frameworks agree, and those on which they differ. Times are in milliseconds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from benchmarks.load import FIRST_MS
from benchmarks.peers.joins import Fill, Order, Price
from benchmarks.peers.workloads import Item, Trade

#: within 60 s, grace 10 s
MINUTE = 60_000
Scenarios = Mapping[str, Sequence[Item]]


def tick(scenario: str, at: int, price: int, key: str = "a") -> Item:
    """A trade of the windows of 10 s, grace 1 s."""
    name = f"{scenario}/{key}"
    return Item(0, name, FIRST_MS + at, Trade("t", "x", name, "BUY", 1, price, at))


def trade(scenario: str, at: int, id: str, key: str = "a") -> Item:
    name = f"{scenario}/{key}"
    return Item(0, name, FIRST_MS + at, Trade(id, "x", name, "BUY", 1, 0, at))


def price(scenario: str, at: int, price: int | None, key: str = "a") -> Item:
    name = f"{scenario}/{key}"
    return Item(1, name, FIRST_MS + at, None if price is None else Price(name, price, "x", at))


def order(scenario: str, at: int, quantity: int = 1, key: str = "a") -> Item:
    """An order of the join within 60 s, grace 10 s; orders of one key differ in their quantity."""
    name = f"{scenario}/{key}"
    return Item(0, name, FIRST_MS + at, Order(name, "x", quantity, at))


def fill(scenario: str, at: int, id: str, price: int = 1, key: str = "a") -> Item:
    name = f"{scenario}/{key}"
    return Item(1, name, FIRST_MS + at, Fill(id, name, price, at))


def _random_ticks(scenario: str) -> list[Item]:
    numbers = random.Random(11)
    items = [
        tick(scenario, 200 * n - numbers.choice([0, 0, 0, 150, 900]), numbers.randrange(100), numbers.choice("abcde"))
        for n in range(5, 400)
    ]
    return [*items, tick(scenario, 120_000, 1, "end")]


def _random_prices(scenario: str) -> list[Item]:
    numbers, items = random.Random(12), list[Item]()
    for at in range(1, 400):
        key = numbers.choice("abcde")
        items.append(trade(scenario, at, f"t{at}", key) if at % 2 else price(scenario, at, numbers.randrange(100), key))
    return items


def _random_fills(scenario: str) -> list[Item]:
    numbers, items = random.Random(13), list[Item]()
    for n in range(1, 200):
        at, key = n * 2_001, numbers.choice("abcdefgh")
        items.append(order(scenario, at, n, key) if n % 2 else fill(scenario, at, f"f{n}", 1, key))
    return items


WINDOWS: Scenarios = {
    "same": _random_ticks("same"),
    "edges": [tick("edges", at, at) for at in (0, 9_999, 10_000, 10_999, 9_000, 11_000, 21_000)],
    "other-key": [tick("other-key", 1, 1), tick("other-key", 11_000, 2, "b")],
    "late": [tick("late", 1, 1), tick("late", 11_000, 2), tick("late", 5_000, 3), tick("late", 21_000, 4)],
    "late-unopened": [
        tick("late-unopened", 15_000, 1),
        tick("late-unopened", 5_000, 2, "b"),
        tick("late-unopened", 21_000, 3),
    ],
    "open": [tick("open", 1, 1)],
}

INNER: Scenarios = {
    "same": _random_fills("same"),
    "edges": [
        order("edges", 0, 1),
        fill("edges", MINUTE, "f1"),
        order("edges", 0, 2, "b"),
        fill("edges", MINUTE + 1, "f2", 1, "b"),
    ],
    "older": [order("older", 100_000), fill("older", 110_000, "f1"), fill("older", 95_000, "f2")],
    "in-grace": [
        order("in-grace", 100_000),
        order("in-grace", 165_000, 1, "b"),
        fill("in-grace", 166_000, "f1", 1, "b"),
        fill("in-grace", 100_500, "f2"),
    ],
    "late": [
        order("late", 100_000),
        order("late", 171_000, 1, "b"),
        fill("late", 172_000, "f1", 1, "b"),
        fill("late", 100_500, "f2"),
    ],
    "partner-over": [
        order("partner-over", 100_000),
        order("partner-over", 171_000, 1, "b"),
        fill("partner-over", 172_000, "f1", 1, "b"),
        fill("partner-over", 150_000, "f2"),
    ],
    "tie": [order("tie", 1_000), fill("tie", 1_000, "f1"), order("tie", 1_000, 2), fill("tie", 1_000, "f2")],
}

OUTER: Scenarios = {
    "unmatched": [order("unmatched", 0), fill("unmatched", 1, "f1", 1, "b"), order("unmatched", 80_000, 2, "c")],
    "pair-later": [order("pair-later", 0), fill("pair-later", 5_000, "f1")],
    "at-the-edge": [
        order("at-the-edge", 0),
        order("at-the-edge", 70_000, 2, "b"),
        order("at-the-edge", 70_001, 3, "c"),
    ],
    "late": [order("late", 100_000, 1, "b"), order("late", 1_000)],
    "open": [order("open", 0)],
}

TABLE: Scenarios = {
    "same": _random_prices("same"),
    "tie": [trade("tie", 10, "t1"), price("tie", 10, 5), trade("tie", 20, "t2")],
    "older-price": [price("older-price", 10, 1), price("older-price", 5, 2), trade("older-price", 20, "t1")],
    "older-trade": [price("older-trade", 10, 1), trade("older-trade", 20, "t1"), trade("older-trade", 3, "t2")],
    "no-price": [trade("no-price", 1, "t1"), price("no-price", 2, 1)],
}

DELETED: Scenarios = {
    "deleted": [price("deleted", 1, 7), trade("deleted", 2, "t1"), price("deleted", 3, None), trade("deleted", 4, "t2")]
}
