"""Feed the market to Kafka: `python -m examples.clearing.feed SERVERS --records 200000 --rate 5000`.

Each trade is keyed by its account, so an account's trades lie in one partition, in order.
"""

import argparse
from collections.abc import Iterable, Iterator

import msgspec

from examples.clearing.domain import Trade
from examples.clearing.market import trades
from examples.feeding import Feed


def records(market: Iterable[Trade]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the topic `trades`."""
    encode = msgspec.json.Encoder().encode
    return ((trade.account.encode(), encode(trade)) for trade in market)


def main() -> None:
    """Parse the command line and feed."""
    parser = argparse.ArgumentParser(prog="python -m examples.clearing.feed", description=__doc__)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rate", type=float, default=None, help="records a second; default: flat out")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    feed = Feed(options.bootstrap_servers, "trades", options.rate)
    feed.send(records(trades(options.records, seed=options.seed)))


if __name__ == "__main__":
    main()
