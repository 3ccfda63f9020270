"""The inputs and outputs of `script/bench join`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import msgspec

from benchmarks.load import FIRST_MS
from benchmarks.peers.workloads import SYMBOLS, Item, Outputs, Workload, trade_of

#: milliseconds; `match`: partners are at most `WITHIN` apart
WITHIN, MATCH_GRACE = 60_000, 10_000


class Price(msgspec.Struct, frozen=True, gc=False):
    """Right side of `enrich`, keyed by symbol."""

    symbol: str
    price: int
    source: str
    ts: int


class Enriched(msgspec.Struct, frozen=True, gc=False):
    """A trade with the newest price of its symbol; -1 without one."""

    id: str
    symbol: str
    price: int
    value: int


class Order(msgspec.Struct, frozen=True, gc=False):
    """Left side of `match`, keyed by its id."""

    id: str
    account: str
    quantity: int
    ts: int


class Fill(msgspec.Struct, frozen=True, gc=False):
    """Right side of `match`, keyed by its order."""

    id: str
    order: str
    price: int
    ts: int


class Matched(msgspec.Struct, frozen=True, gc=False):
    """A pair of an order and a fill; '' for the one that is missing."""

    order: str
    fill: str
    value: int


def _enrich_items(count: int) -> Iterator[Item]:
    numbers = random.Random(1)
    for index in range(count // 2):
        at, symbol = FIRST_MS + 2 * index, f"SYM-{numbers.randrange(SYMBOLS):04d}"
        yield Item(0, symbol, at, trade_of(index, symbol, at, numbers))
        # An odd time, because of equal ones each framework takes another first.
        at, symbol = at + 1, f"SYM-{numbers.randrange(SYMBOLS):04d}"
        yield Item(1, symbol, at, Price(symbol, numbers.randrange(1_000, 99_999), "XNAS", at))


def _enrich_truth(items: Iterable[Item]) -> Outputs:
    newest: dict[str, int] = {}
    found: Outputs = {}
    for item in sorted(items, key=lambda item: (item.at, item.input)):
        if item.input == 1:
            newest[item.key] = item.value.price
        elif item.key in newest:
            trade, price = item.value, newest[item.key]
            found.setdefault(item.key, []).append((trade.id, trade.symbol, price, price * trade.quantity))
    return found


def _match_items(count: int) -> Iterator[Item]:
    numbers = random.Random(2)
    orders, fills = list[Item](), list[Item]()
    for index in range(count // 2):
        at, name = FIRST_MS + 100_000 + 2 * index, f"o-{index:09d}"
        account = f"account-{numbers.randrange(10_000):05d}"
        orders.append(Item(0, name, at, Order(name, account, numbers.randrange(1, 1_000), at)))
        at += 2 * numbers.randrange(-WITHIN * 5 // 8, WITHIN * 5 // 8) + 1  # four fifths have a partner in time
        fills.append(Item(1, name, at, Fill(f"f-{index:09d}", name, numbers.randrange(1_000, 99_999), at)))
    yield from sorted([*orders, *fills], key=lambda item: item.at)


def _match_truth(items: Iterable[Item]) -> Outputs:
    orders, fills = dict[str, list[Item]](), dict[str, list[Item]]()
    for item in items:
        (fills if item.input else orders).setdefault(item.key, []).append(item)
    found: Outputs = {}
    for key, left in orders.items():
        for order in left:
            for fill in fills.get(key, ()):
                if abs(order.at - fill.at) <= WITHIN:
                    value = order.value.quantity * fill.value.price
                    found.setdefault(key, []).append((order.value.id, fill.value.id, value))
    return found


def _pairs_truth(items: Iterable[Item]) -> Outputs:
    rows = list(items)
    found, now = _match_truth(rows), max(item.at for item in rows)
    paired = {name for outputs in found.values() for order, fill, _ in outputs for name in (order, fill)}
    for item in sorted(rows, key=lambda item: item.at):
        if item.value.id not in paired and item.at + WITHIN + MATCH_GRACE < now:
            unmatched = ("", item.value.id, 0) if item.input else (item.value.id, "", 0)
            found.setdefault(item.key, []).append(unmatched)
    return found


ENRICH = Workload(
    "enrich",
    "stream-table join: each trade with the newest price of its symbol",
    ("trades", "prices"),
    Enriched,
    _enrich_items,
    _enrich_truth,
    {"join": "inner"},
    rate=1.75,
)
MATCH = Workload(
    "match",
    "stream-stream join: orders and fills within 60 s, grace 10 s",
    ("orders", "fills"),
    Matched,
    _match_items,
    _match_truth,
    {"join": "inner", "within_ms": WITHIN, "grace_ms": MATCH_GRACE},
    rate=1.5,
    processor=0.45,
)
PAIRS = Workload(
    "pairs",
    "outer join of the same orders and fills",
    ("orders", "fills"),
    Matched,
    _match_items,
    _pairs_truth,
    {"join": "outer", "within_ms": WITHIN, "grace_ms": MATCH_GRACE},
    rate=1.5,
    processor=0.45,
    # quixstreams reports a record without a partner at once, and the pair later.
    contenders=("statehold", "streams"),
    # Kafka Streams reports them at most once a second, and only with a further record.
    peers_may_lack=lambda row: "" in row,
)
