"""Feed transactions to the ledger: `python -m examples.ledger.feed SERVERS --records 2000 --rate 100`.

The same number gives the same transaction on every machine. One debit overdraws account 7.
"""

import argparse
from collections.abc import Iterator
from random import Random
from typing import Final

import msgspec

from examples.feeding import Feed
from examples.ledger.app import Transaction

ACCOUNTS: Final = 40
#: the account that is overdrawn, and the number of the transaction that overdraws it
WATCHED: Final = 7
OVERDRAFT: Final = 700


def transaction(number: int) -> Transaction:
    """Return a transaction by its number: a small movement of any account, or the large debit."""
    if number == OVERDRAFT:
        return Transaction(number, WATCHED, 261121, "VYBER", 9_000_000)
    random = Random(number)
    account, amount = random.randint(1, ACCOUNTS), random.randrange(1_000, 90_000)
    return Transaction(number, account, 261121, random.choice(["PRIJEM", "PRIJEM", "VYDAJ"]), amount)


def records(count: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the topic `transactions`."""
    for number in range(1, count + 1):
        each = transaction(number)
        yield str(each.account).encode(), msgspec.json.encode(each)


def main() -> None:
    """Parse the command line and feed."""
    parser = argparse.ArgumentParser(prog="python -m examples.ledger.feed", description=__doc__)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("--records", type=int, default=2_000)
    parser.add_argument("--rate", type=float, default=None, help="records a second; default: flat out")
    options = parser.parse_args()
    Feed(options.bootstrap_servers, "transactions", options.rate).send(records(options.records))


if __name__ == "__main__":
    main()
