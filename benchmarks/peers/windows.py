"""The inputs and outputs of `script/bench window`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

import msgspec

from benchmarks.load import FIRST_MS
from benchmarks.peers.workloads import SYMBOLS, Item, Outputs, Workload, trade_of

#: milliseconds; `candles`, `hops`, `visits`
SIZE, EVERY, GRACE = 10_000, 5_000, 1_000
#: milliseconds; odd where times are even, so that none is exactly at the edge
GAP, TTL = 4_001, 60_001


class Candle(msgspec.Struct, frozen=True, gc=False):
    """A closed window of a symbol."""

    symbol: str
    start: int
    open: int
    high: int
    low: int
    close: int
    volume: int


class Visit(msgspec.Struct, frozen=True, gc=False):
    """A closed session of a symbol: the times of its first and last trade."""

    symbol: str
    start: int
    last: int
    trades: int
    volume: int


class Passed(msgspec.Struct, frozen=True, gc=False):
    """A trade whose id did not come within the time before it."""

    id: str
    symbol: str
    ts: int


def _candle_items(count: int) -> Iterator[Item]:
    numbers = random.Random(3)
    for index in range(count):
        at, symbol = FIRST_MS + index, f"SYM-{numbers.randrange(SYMBOLS):04d}"
        if numbers.random() < 0.1:
            at -= numbers.randrange(GRACE)  # out of order, and in time
        yield Item(0, symbol, at, trade_of(index, symbol, at, numbers))


def _candle_truth(every: int) -> Callable[[Iterable[Item]], Outputs]:
    """Return the truth of windows of `SIZE`, of which one begins at each multiple of `every`."""

    def truth(items: Iterable[Item]) -> Outputs:
        now, found = 0, dict[str, dict[int, list[int]]]()
        for item in items:
            now, last = max(now, item.at), item.at // every * every
            price, quantity = item.value.price, item.value.quantity
            for start in range(last - SIZE + every, last + 1, every):
                if start + SIZE + GRACE <= now:
                    continue
                candle = found.setdefault(item.key, {}).setdefault(start, [price, price, price, price, 0])
                candle[1:] = [max(candle[1], price), min(candle[2], price), price, candle[4] + quantity]
        closed = now - GRACE - SIZE
        return {
            key: [(key, start, *candle) for start, candle in sorted(windows.items()) if start <= closed]
            for key, windows in found.items()
        }

    return truth


def _visit_items(count: int) -> Iterator[Item]:
    numbers = random.Random(4)
    for index in range(count):
        at, symbol = FIRST_MS + 2 * index, f"SYM-{numbers.randrange(SYMBOLS):04d}"
        if numbers.random() < 0.1:
            at -= 2 * numbers.randrange(GRACE // 2)  # out of order, and in time
        yield Item(0, symbol, at, trade_of(index, symbol, at, numbers))


def _visit_truth(items: Iterable[Item]) -> Outputs:
    now, open_visits, found = 0, dict[str, list[Visit]](), Outputs()
    for item in items:
        now, quantity = max(now, item.at), item.value.quantity
        visit, apart = Visit(item.key, item.at, item.at, 1, quantity), list[Visit]()
        for each in open_visits.get(item.key, ()):
            if each.last + GAP + GRACE <= now:
                found.setdefault(item.key, []).append(msgspec.structs.astuple(each))
            elif each.start < item.at + GAP and item.at < each.last + GAP:
                start, last = min(visit.start, each.start), max(visit.last, each.last)
                visit = Visit(item.key, start, last, visit.trades + each.trades, visit.volume + each.volume)
            else:
                apart.append(each)
        open_visits[item.key] = sorted([*apart, visit], key=lambda each: each.last)
    for key, visits in open_visits.items():
        ended = [msgspec.structs.astuple(each) for each in visits if each.last + GAP + GRACE <= now]
        found.setdefault(key, []).extend(ended)
    return found


def _once_items(count: int) -> Iterator[Item]:
    numbers = random.Random(5)
    for index in range(count):
        at, first = FIRST_MS + 2 * index, index
        if index and numbers.random() < 0.3:
            first = numbers.randrange(max(0, index - TTL), index)  # about half of them after the time of `TTL`
        name = f"t-{first:09d}"
        yield Item(0, name, at, trade_of(first, f"SYM-{first % SYMBOLS:04d}", at, numbers))


def _once_truth(items: Iterable[Item]) -> Outputs:
    kept, found = dict[str, int](), Outputs()
    for item in items:
        if item.key not in kept or item.at - kept[item.key] >= TTL:
            kept[item.key] = item.at
            found.setdefault(item.key, []).append((item.key, item.value.symbol, item.at))
    return found


CANDLES = Workload(
    "candles",
    "tumbling windows of 10 s, grace 1 s, one output when a window closes",
    ("ticks",),
    Candle,
    _candle_items,
    _candle_truth(SIZE),
    {"size_ms": SIZE, "every_ms": SIZE, "grace_ms": GRACE, "closing": "partition"},
)
HOPS = Workload(
    "hops",
    "hopping windows of 10 s every 5 s, grace 1 s, one output when a window closes",
    ("ticks",),
    Candle,
    _candle_items,
    _candle_truth(EVERY),
    {"size_ms": SIZE, "every_ms": EVERY, "grace_ms": GRACE, "closing": "partition"},
)
VISITS = Workload(
    "visits",
    "sessions with a gap of 4 s, grace 1 s, one output when a session closes",
    ("visits",),
    Visit,
    _visit_items,
    _visit_truth,
    {"gap_ms": GAP, "grace_ms": GRACE},
    rate=1.5,
    contenders=("statehold", "streams"),  # quixstreams has no sessions
)
ONCE = Workload(
    "once",
    "deduplication by id within 60 s, three of ten ids repeated",
    ("repeated",),
    Passed,
    _once_items,
    _once_truth,
    {"ttl_ms": TTL},
    rate=1.5,
    contenders=("statehold", "streams"),  # quixstreams has no store with a time
)
