"""The work of `join` and `window`: inputs by seed, and the outputs recomputed from them without any framework."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Producer

from benchmarks.kafka import LONG_WAIT, records_of
from benchmarks.load import FIRST_MS, Outcome

SYMBOLS = 1_000
#: milliseconds; `match`: partners are at most `WITHIN` apart
WITHIN, MATCH_GRACE = 60_000, 10_000
#: milliseconds; `candles`
SIZE, CANDLE_GRACE = 10_000, 1_000
#: a key's outputs, in their order
Outputs = dict[str, list[tuple[Any, ...]]]


class Trade(msgspec.Struct, frozen=True, gc=False):
    """Left side of `enrich`, and the input of `candles`: about 120 bytes of JSON, keyed by symbol."""

    id: str
    account: str
    symbol: str
    side: str
    quantity: int
    price: int
    ts: int


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


class Candle(msgspec.Struct, frozen=True, gc=False):
    """A closed window of a symbol."""

    symbol: str
    start: int
    open: int
    high: int
    low: int
    close: int
    volume: int


class Item(NamedTuple):
    """A record of an input."""

    input: int
    key: str
    at: int
    value: Any


@dataclass(frozen=True)
class Workload:
    """`items(count)` has about `count` records of all inputs together, in the order of each input's topic."""

    name: str
    title: str
    inputs: tuple[str, ...]
    output: type[Any]
    items: Callable[[int], Iterator[Item]]
    truth: Callable[[Iterable[Item]], Outputs]
    #: what the contenders' job files say
    settings: dict[str, Any] = field(default_factory=dict)


def _trade(index: int, symbol: str, at: int, numbers: random.Random) -> Trade:
    account = f"account-{numbers.randrange(10_000):05d}"
    side = "BUY" if numbers.random() < 0.5 else "SELL"
    return Trade(
        f"t-{index:09d}", account, symbol, side, numbers.randrange(1, 1_000), numbers.randrange(1_000, 99_999), at
    )


def _enrich_items(count: int) -> Iterator[Item]:
    numbers = random.Random(1)
    for index in range(count // 2):
        at, symbol = FIRST_MS + 2 * index, f"SYM-{numbers.randrange(SYMBOLS):04d}"
        yield Item(0, symbol, at, _trade(index, symbol, at, numbers))
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


def _candle_items(count: int) -> Iterator[Item]:
    numbers = random.Random(3)
    for index in range(count):
        at, symbol = FIRST_MS + index, f"SYM-{numbers.randrange(SYMBOLS):04d}"
        if numbers.random() < 0.1:
            at -= numbers.randrange(CANDLE_GRACE)  # out of order, and in time
        yield Item(0, symbol, at, _trade(index, symbol, at, numbers))


def _candle_truth(items: Iterable[Item]) -> Outputs:
    now, found = 0, dict[str, dict[int, list[int]]]()
    for item in items:
        now, start = max(now, item.at), item.at // SIZE * SIZE
        if start + SIZE + CANDLE_GRACE <= now:
            continue
        price, quantity = item.value.price, item.value.quantity
        candle = found.setdefault(item.key, {}).setdefault(start, [price, price, price, price, 0])
        candle[1:] = [max(candle[1], price), min(candle[2], price), price, candle[4] + quantity]
    closed = now - CANDLE_GRACE - SIZE
    return {
        key: [(key, start, *candle) for start, candle in sorted(windows.items()) if start <= closed]
        for key, windows in found.items()
    }


ENRICH = Workload(
    "enrich",
    "stream-table join: each trade with the newest price of its symbol",
    ("trades", "prices"),
    Enriched,
    _enrich_items,
    _enrich_truth,
    {"join": "inner"},
)
MATCH = Workload(
    "match",
    "stream-stream join: orders and fills within 60 s, grace 10 s",
    ("orders", "fills"),
    Matched,
    _match_items,
    _match_truth,
    {"join": "inner", "within_ms": WITHIN, "grace_ms": MATCH_GRACE},
)
CANDLES = Workload(
    "candles",
    "tumbling windows of 10 s, grace 1 s, one output when a window closes",
    ("ticks",),
    Candle,
    _candle_items,
    _candle_truth,
    {"size_ms": SIZE, "grace_ms": CANDLE_GRACE, "closing": "partition"},
)
WORKLOADS = {work.name: work for work in (ENRICH, MATCH, CANDLES)}


def fill(bootstrap: str, topics: dict[str, int], items: Iterable[Item], inputs: tuple[str, ...]) -> None:
    """Produce the records with their times; count those of each topic in `topics`."""
    config = {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 200_000}
    producer, encode = Producer({**config, "partitioner": "murmur2"}), msgspec.json.Encoder().encode
    for item in items:
        topic, value = inputs[item.input], encode(item.value)
        while True:
            try:
                producer.produce(topic, value, item.key.encode(), timestamp=item.at)
                break
            except BufferError:  # the queue is full: let it drain
                producer.poll(0.1)
        topics[topic] = topics.get(topic, 0) + 1
    assert producer.flush(LONG_WAIT) == 0, f"{inputs} could not be filled"


def verify(bootstrap: str, topic: str, work: Workload, truth: Outputs) -> Outcome:
    """Compare every output with the recomputation: each once, those of a key in order."""
    found, seen = Outcome(), dict.fromkeys(truth, 0)
    decode, fields = msgspec.json.Decoder(work.output).decode, msgspec.structs.astuple
    for message in records_of(bootstrap, topic):
        key, value = (message.key() or b"").decode(), fields(decode(message.value() or b""))
        index, wanted = seen.get(key, 0), truth.get(key, [])
        if index >= len(wanted) or value != wanted[index]:
            expected = wanted[index] if index < len(wanted) else "nothing"
            found.wrong.append(f"{key}: output {index + 1} is {value}, expected {expected}")
        seen[key] = index + 1
        found.records += 1
        found.stamps.append(message.timestamp()[1])
    missing = sum(len(outputs) - seen[key] for key, outputs in truth.items())
    if missing:
        found.wrong.append(f"{missing} outputs are missing")
    return found
