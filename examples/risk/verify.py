"""Verify a risk service against its inputs: `python -m examples.risk.verify BOOTSTRAP_SERVERS`.

It shares no code with the service. It merges the inputs by timestamp itself, which is the service's order if the inputs
were complete before the service started, and computes every output again.
"""

import heapq
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from examples.proof import Event, Findings, Held, compare_events, compare_state
from examples.topics import Raw, by_key, read_committed


class Books:
    """Expected outputs by key and expected tables of one partition."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.limits = limits
        self.outputs: dict[str, dict[str, list[Event]]] = {
            name: defaultdict(list) for name in ("exposures", "alerts", "candles")
        }
        self.prices: dict[str, int] = {}
        self.lots: dict[tuple[str, str], int] = {}
        self.minutes: dict[str, tuple[int, list[int]]] = {}

    def run(self, trades: Iterable[Raw], prices: Iterable[Raw]) -> "Books":
        """Process both inputs by timestamp; of equal timestamps the trades come first. Return self."""
        inputs = (
            [(record.timestamp, rank, record.value) for record in each] for rank, each in enumerate((trades, prices))
        )
        for timestamp, rank, value in heapq.merge(*inputs, key=lambda each: each[:2]):
            self._close_candles(timestamp)
            (self._price if rank else self._trade)(json.loads(value), timestamp)
        return self

    def tables(self) -> dict[str, dict[Any, Any]]:
        """Return the expected tables by name."""
        accounts = sorted({account for _, account in self.lots})
        return {
            "prices": self.prices,
            "lots": self.lots,
            "exposures": {account: self._exposure(account) for account in accounts},
            "candles": {
                (name, start, start + 60_000): _candle(start, prices) for name, (start, prices) in self.minutes.items()
            },
        }

    def _exposure(self, account: str) -> int:
        held = ((instrument, lots) for (instrument, owner), lots in self.lots.items() if owner == account)
        return sum(abs(lots) * self.prices.get(instrument, 0) for instrument, lots in held)

    def _trade(self, trade: Event, _: int) -> None:
        account, place = trade["account"], (trade["instrument"], trade["account"])
        before = self._exposure(account)
        self.lots[place] = self.lots.get(place, 0) + trade["lots"]
        after = self._exposure(account)
        self._alert(account, before, after, trade["id"])
        self.outputs["exposures"][account].append({"id": trade["id"], "account": account, "exposure": after})

    def _price(self, price: Event, timestamp: int) -> None:
        instrument = price["instrument"]
        holders = sorted(account for name, account in self.lots if name == instrument)
        before = {account: self._exposure(account) for account in holders}
        self.prices[instrument] = price["price"]
        for account in holders:
            self._alert(account, before[account], self._exposure(account), price["id"])
        self.minutes.setdefault(instrument, (timestamp - timestamp % 60_000, []))[1].append(price["price"])

    def _alert(self, account: str, before: int, after: int, id: int) -> None:
        limit = self.limits[account]
        if before <= limit < after:
            alert = {"id": id, "account": account, "exposure": after, "limit": limit}
            self.outputs["alerts"][account].append(alert)

    def _close_candles(self, timestamp: int) -> None:
        for instrument, (start, prices) in list(self.minutes.items()):
            if start + 60_000 <= timestamp:
                self.outputs["candles"][instrument].append(_candle(start, prices))
                del self.minutes[instrument]


def verify(bootstrap_servers: str, held: Mapping[int, Held] | None = None) -> list[Findings]:
    """Read the topics, compute the outputs again and compare them, and the tables `held` by partition if given."""
    limits = {row.key: int(row.value) for rows in read_committed(bootstrap_servers, "limits").values() for row in rows}
    trades, prices = (read_committed(bootstrap_servers, topic) for topic in ("trades", "prices"))
    books = {partition: Books(limits).run(trades[partition], prices[partition]) for partition in trades}
    findings = []
    for name in ("exposures", "alerts", "candles"):
        expected = {key: events for book in books.values() for key, events in book.outputs[name].items()}
        seen = by_key(read_committed(bootstrap_servers, name))
        findings.append(compare_events(name, expected, seen, "start" if name == "candles" else "id"))
    for partition, each in (held or {}).items():
        tables = books[partition].tables()
        findings += compare_state(tables, {name: each.state[name] for name in tables})
    return findings


def _candle(start: int, prices: list[int]) -> Event:
    ends = {"open": prices[0], "high": max(prices), "low": min(prices), "close": prices[-1]}
    return {"start": start, **ends, "count": len(prices)}


if __name__ == "__main__":
    results = verify(sys.argv[1])
    print("\n".join([*map(str, results), *(each.first for each in results if each.first)]))
    sys.exit(0 if all(each.ok and each.seen for each in results) else 1)
