"""Simulates markets: one trade and five prices for each tick; the same seed gives the same records."""

from collections.abc import Iterator
from random import Random

from examples.risk.app import Price, Trade

MARKETS = {
    "ENERGY": ("BRENT", "COAL", "GASOIL"),
    "GRAINS": ("CORN", "RICE", "WHEAT"),
    "METALS": ("COPPER", "GOLD", "SILVER"),
    "SOFTS": ("COCOA", "COFFEE", "SUGAR"),
}
"""Instruments by market. A market is the key of its trades and prices."""

ACCOUNTS = tuple(f"{market}-{number:02d}" for market in MARKETS for number in range(20))
"""Each account trades the instruments of one market."""

LIMITS = {account: 2_000_000 + 250_000 * (number % 7) for number, account in enumerate(ACCOUNTS)}
"""Highest exposure of each account in cents."""

TICKS_PER_SECOND = 4
"""All records of one second have one timestamp, so that ties are frequent."""


def ticks(count: int, *, seed: int, begin: int) -> Iterator[tuple[str, Trade | Price, int]]:
    """Yield (market, record, timestamp) of `count` ticks; `begin` and timestamps are milliseconds since 1970."""
    random = Random(seed)
    prices = {instrument: random.randrange(2_000, 20_000) for names in MARKETS.values() for instrument in names}
    for tick in range(count):
        timestamp = begin + tick // TICKS_PER_SECOND * 1000
        for number in range(5):
            market = random.choice(tuple(MARKETS))
            instrument = random.choice(MARKETS[market])
            prices[instrument] = max(100, prices[instrument] + random.randrange(-20, 21))
            yield market, Price(6 * tick + number, instrument, prices[instrument]), timestamp
        account = random.choice(ACCOUNTS)
        market = account.partition("-")[0]
        lots = random.choice((-1, 1)) * random.randrange(1, 50)
        yield market, Trade(6 * tick + 5, account, random.choice(MARKETS[market]), lots), timestamp
