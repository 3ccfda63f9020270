"""The work with statehold: `python -m benchmarks.peers.service JOB.json`. Public API, default settings."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from examples.orders.app import AllOrders, Joined, Orders

from benchmarks.peers.joins import Enriched, Fill, Matched, Order, Price
from benchmarks.peers.windows import Candle, Passed, Visit
from benchmarks.peers.workloads import Trade
from benchmarks.statehold_app import settings_of
from statehold import Dedupe, Handler, Hopping, JoinBuffer, Output, Record, Service, Session, Table, Tumbling, on
from statehold.admin.topics import ServiceTopics


class Prices(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An open candle, as the table keeps it."""

    open: int
    high: int
    low: int
    close: int
    volume: int


class Counted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An open session, as the table keeps it."""

    trades: int
    volume: int


NOTHING = Counted(0, 0)


def enrich(job: dict[str, Any]) -> type[Handler[Any]]:
    """Return a handler that joins trades with the newest price."""
    trades, prices = job["inputs"]
    inner = job["join"] == "inner"

    class Enrich(Handler[Trade | Price]):
        newest = Table(key=str, value=int)
        enriched = Output(job["output"], value=Enriched)

        @on(trades, value=Trade)
        def trade(self, record: Record[Trade]) -> None:
            trade = record.value
            price = self.newest.get(trade.symbol)
            if price is not None:
                self.enriched.send(Enriched(trade.id, trade.symbol, price, price * trade.quantity), trade.symbol)
            elif not inner:
                self.enriched.send(Enriched(trade.id, trade.symbol, -1, 0), trade.symbol)

        @on(prices, value=Price | None)
        def price(self, record: Record[Price | None]) -> None:
            price = record.value
            if price is not None:
                self.newest[price.symbol] = price.price
            elif record.key is not None:
                self.newest.delete(record.key.decode())

    return Enrich


def match(job: dict[str, Any]) -> type[Handler[Any]]:
    """Return a handler that joins orders and fills."""
    orders, fills = job["inputs"]
    within, grace = timedelta(milliseconds=job["within_ms"]), timedelta(milliseconds=job["grace_ms"])

    class Match(Handler[Order | Fill]):
        pairs = JoinBuffer(within, grace=grace, key=str, left=Order, right=Fill, join=job["join"])
        matched = Output(job["output"], value=Matched)

        @on(orders, value=Order)
        def order(self, record: Record[Order]) -> None:
            order = record.value
            for fill in self.pairs.left(record, order.id):
                self.matched.send(Matched(order.id, fill.id, order.quantity * fill.price), order.id)

        @on(fills, value=Fill)
        def fill(self, record: Record[Fill]) -> None:
            fill = record.value
            for order in self.pairs.right(record, fill.order):
                self.matched.send(Matched(order.id, fill.id, order.quantity * fill.price), fill.order)

    class Outer(Match):
        def on_unmatched(self, name: str, key: str, side: str, value: Any, timestamp: int) -> None:
            self.matched.send(Matched(value.id, "", 0) if side == "left" else Matched("", value.id, 0), key)

    return Match if job["join"] == "inner" else Outer


def candles(job: dict[str, Any]) -> type[Handler[Any]]:
    """Return a handler that makes a candle of each window."""
    size, every, grace = (timedelta(milliseconds=job[name]) for name in ("size_ms", "every_ms", "grace_ms"))

    class Candles(Handler[Trade]):
        open = (
            Tumbling(size, grace=grace, key=str, value=Prices)
            if every == size
            else Hopping(size, every, grace=grace, key=str, value=Prices)
        )
        closed = Output(job["output"], value=Candle)

        def on_record(self, record: Record[Trade]) -> None:
            trade = record.value

            def add(candle: Prices | None) -> Prices:
                price = trade.price
                if candle is None:
                    return Prices(price, price, price, price, trade.quantity)
                high = price if price > candle.high else candle.high
                low = price if price < candle.low else candle.low
                return Prices(candle.open, high, low, price, candle.volume + trade.quantity)

            self.open.update(record, trade.symbol, add)

        def on_window(self, name: str, key: str, start: int, end: int, value: Prices) -> None:
            candle = Candle(key, start, value.open, value.high, value.low, value.close, value.volume)
            self.closed.send(candle, key)

    return Candles


def visits(job: dict[str, Any]) -> type[Handler[Any]]:
    """Return a handler that counts the trades of each session."""
    gap, grace = timedelta(milliseconds=job["gap_ms"]), timedelta(milliseconds=job["grace_ms"])

    class Visits(Handler[Trade]):
        open = Session(
            gap,
            merge=lambda a, b: Counted(a.trades + b.trades, a.volume + b.volume),
            grace=grace,
            key=str,
            value=Counted,
        )
        closed = Output(job["output"], value=Visit)

        def on_record(self, record: Record[Trade]) -> None:
            trade = record.value

            def add(so_far: Counted | None) -> Counted:
                before = so_far or NOTHING
                return Counted(before.trades + 1, before.volume + trade.quantity)

            self.open.update(record, trade.symbol, add)

        def on_window(self, name: str, key: str, start: int, end: int, value: Counted) -> None:
            self.closed.send(Visit(key, start, end - job["gap_ms"], value.trades, value.volume), key)

    return Visits


def once(job: dict[str, Any]) -> type[Handler[Any]]:
    """Return a handler that passes each id once."""

    class Once(Handler[Trade]):
        ids = Dedupe(key=str, ttl=timedelta(milliseconds=job["ttl_ms"]))
        passed = Output(job["output"], value=Passed)

        def on_record(self, record: Record[Trade]) -> None:
            trade = record.value
            if not self.ids.seen(trade.id):
                self.passed.send(Passed(trade.id, trade.symbol, trade.ts), trade.id)

    return Once


def foreign(job: dict[str, Any]) -> type[Handler[Any]]:
    """Return the foreign-key join of the example, whose inputs have fixed names."""

    class Inner(Orders):
        joined = Output(job["output"], value=Joined | None, key=str)

    class Left(AllOrders):
        joined = Output(job["output"], value=Joined | None, key=str)

    return Inner if job["join"] == "inner" else Left


def main() -> None:
    """Create the topics, run until SIGTERM."""
    job = json.loads(Path(sys.argv[1]).read_text())
    works = {"enrich": enrich, "match": match, "candles": candles, "hops": candles, "visits": visits, "once": once}
    works |= {"pairs": match, "foreign": foreign}
    handler, inputs = works[job["work"]](job), job["inputs"]
    reads: dict[str, Any] = {"input": inputs[0]} if len(inputs) == 1 else {"inputs": inputs}
    service = Service(job["group"], handler=handler, settings=settings_of(job), **reads)
    if job.get("prepare", True):
        ServiceTopics(service.settings, service.names, [job["output"]]).create("beginning")
    service.run()


if __name__ == "__main__":
    main()
