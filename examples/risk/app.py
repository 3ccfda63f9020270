"""The service: `statehold run examples.risk.app:service --config examples/risk/risk.toml`."""

from datetime import timedelta
from typing import Any

import msgspec

from statehold import Handler, Output, Record, Reference, Service, Table, Tumbling, on


class Trade(msgspec.Struct, frozen=True):
    """An account buys lots of an instrument, or sells them if `lots` is negative."""

    id: int
    account: str
    instrument: str
    lots: int


class Price(msgspec.Struct, frozen=True):
    """The new price of an instrument in cents."""

    id: int
    instrument: str
    price: int


class Exposure(msgspec.Struct, frozen=True):
    """The value of an account's open lots in cents, long or short, after the trade `id`."""

    id: int
    account: str
    exposure: int


class Alert(msgspec.Struct, frozen=True):
    """Sent once when the trade or price `id` lifts an account above its limit."""

    id: int
    account: str
    exposure: int
    limit: int


class Candle(msgspec.Struct, frozen=True):
    """The `count` prices of an instrument in the minute that begins at `start` (milliseconds since 1970)."""

    start: int
    open: int
    high: int
    low: int
    close: int
    count: int

    def with_price(self, price: int) -> "Candle":
        """Return the candle after one more price."""
        return Candle(self.start, self.open, max(self.high, price), min(self.low, price), price, self.count + 1)


class Risk(Handler[Any]):
    """Watches the accounts of one partition. Trades and prices are keyed by market, so a market is in one partition."""

    limits = Reference("limits", key=str, value=int)
    prices = Table(key=str, value=int)
    lots = Table(key=tuple[str, str], value=int, sorted=True)  # by (instrument, account)
    exposures = Table(key=str, value=int)
    candles = Tumbling(timedelta(minutes=1), key=str, value=Candle)

    changes = Output("exposures", value=Exposure)
    alerts = Output("alerts", value=Alert)
    closed = Output("candles", value=Candle)

    @on("trades", value=Trade)
    def trade(self, record: Record[Trade]) -> None:
        trade = record.value
        before = self.lots.get((trade.instrument, trade.account), 0)
        after = before + trade.lots
        self.lots[trade.instrument, trade.account] = after
        change = (abs(after) - abs(before)) * self.prices.get(trade.instrument, 0)
        self.expose(trade.account, change, trade.id)
        self.changes.send(Exposure(trade.id, trade.account, self.exposures[trade.account]), key=trade.account)

    @on("prices", value=Price)
    def price(self, record: Record[Price]) -> None:
        new = record.value
        change = new.price - self.prices.get(new.instrument, 0)
        self.prices[new.instrument] = new.price
        for (_, account), lots in self.lots.range((new.instrument, ""), (new.instrument + "\0", "")):
            self.expose(account, abs(lots) * change, new.id)

        first = Candle(record.timestamp // 60_000 * 60_000, new.price, new.price, new.price, new.price, 0)
        self.candles.update(record, new.instrument, lambda candle: (candle or first).with_price(new.price))

    def expose(self, account: str, change: int, id: int) -> None:
        """Change an account's exposure; alert when it passes the limit, not while it stays above."""
        before = self.exposures.get(account, 0)
        self.exposures[account] = after = before + change
        limit = self.limits[account]
        if before <= limit < after:
            self.alerts.send(Alert(id, account, after, limit), key=account)

    def on_window(self, name: str, key: str, start: int, end: int, value: Candle) -> None:
        self.closed.send(value, key=key)


service = Service("risk", inputs=["trades", "prices"], handler=Risk)

if __name__ == "__main__":
    service.run()
