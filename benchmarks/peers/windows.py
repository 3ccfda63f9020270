"""The inputs and outputs of `script/bench window`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import msgspec

from benchmarks.load import FIRST_MS
from benchmarks.peers.workloads import SYMBOLS, Item, Outputs, Workload, trade_of

#: milliseconds; `candles`
SIZE, CANDLE_GRACE = 10_000, 1_000


class Candle(msgspec.Struct, frozen=True, gc=False):
    """A closed window of a symbol."""

    symbol: str
    start: int
    open: int
    high: int
    low: int
    close: int
    volume: int


def _candle_items(count: int) -> Iterator[Item]:
    numbers = random.Random(3)
    for index in range(count):
        at, symbol = FIRST_MS + index, f"SYM-{numbers.randrange(SYMBOLS):04d}"
        if numbers.random() < 0.1:
            at -= numbers.randrange(CANDLE_GRACE)  # out of order, and in time
        yield Item(0, symbol, at, trade_of(index, symbol, at, numbers))


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


CANDLES = Workload(
    "candles",
    "tumbling windows of 10 s, grace 1 s, one output when a window closes",
    ("ticks",),
    Candle,
    _candle_items,
    _candle_truth,
    {"size_ms": SIZE, "grace_ms": CANDLE_GRACE, "closing": "partition"},
)
