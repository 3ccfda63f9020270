"""Simulates a market: accounts trade instruments with random prices; the same seed gives the same trades."""

from collections.abc import Iterator
from random import Random

from examples.clearing.domain import Trade

INSTRUMENTS = (
    "ALUMINIUM", "BRENT", "COAL", "COCOA", "COFFEE", "COPPER", "CORN", "COTTON", "GASOIL", "GOLD",
    "NICKEL", "PALLADIUM", "PLATINUM", "RICE", "SILVER", "SOYBEAN", "SUGAR", "TIN", "WHEAT", "ZINC",
)  # fmt: skip

LOWEST_PRICE = 100
"""Cents; the walk turns around here."""


def trades(count: int, *, seed: int, accounts: int = 1_000) -> Iterator[Trade]:
    """Yield `count` trades with ids 0, 1, 2, ...; integers only, so that every machine yields the same."""
    random = Random(seed)
    names = [f"ACC-{number:05d}" for number in range(accounts)]
    prices = {instrument: random.randrange(2_000, 20_000) for instrument in INSTRUMENTS}
    for number in range(count):
        instrument = INSTRUMENTS[int(random.random() * len(INSTRUMENTS))]
        price = max(LOWEST_PRICE, prices[instrument] + int(random.random() * 41) - 20)
        prices[instrument] = price
        yield Trade(
            id=number,
            account=names[int(random.random() * accounts)],
            instrument=instrument,
            side="buy" if random.random() < 0.5 else "sell",
            quantity=1 + int(random.random() * 100),
            price=price,
        )
