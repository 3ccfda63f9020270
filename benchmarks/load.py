"""The load that all contenders share: trades in, one running total per account out, and an independent check."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
from confluent_kafka import Producer

from benchmarks.kafka import LONG_WAIT, records_of

ACCOUNTS = 10_000
SYMBOLS = ("ACME", "GLOBEX", "INITECH", "UMBRELLA", "STARK", "WAYNE")
FIRST_MS = 1_700_000_000_000
#: milliseconds of outputs after which a run is warm, and those that its warm rate needs at least after them
WARM_MS, LEAST_MS = 5_000, 1_000


class Trade(msgspec.Struct, frozen=True, gc=False):
    """One input record: about 130 bytes of JSON, keyed by account."""

    id: str
    account: str
    symbol: str
    side: str
    quantity: int
    price: int
    ts: int


class Running(msgspec.Struct, frozen=True, gc=False):
    """One output record: the account's total after the trade, and how many trades it has had."""

    id: str
    account: str
    total: int
    count: int


def trade(index: int, numbers: random.Random, accounts: int = ACCOUNTS) -> Trade:
    """Return trade number `index`; the same numbers give the same trades."""
    account = f"account-{numbers.randrange(accounts):05d}"
    return Trade(
        f"t-{index:09d}",
        account,
        numbers.choice(SYMBOLS),
        "BUY" if numbers.random() < 0.5 else "SELL",
        numbers.randrange(1, 1_000),
        numbers.randrange(1_000, 99_999),
        FIRST_MS + index,
    )


def trades(count: int, seed: int = 1, accounts: int = ACCOUNTS) -> Iterator[Trade]:
    """Return `count` trades."""
    numbers = random.Random(seed)
    return (trade(index, numbers, accounts) for index in range(count))


def amount(one: Trade) -> int:
    """Return what a trade adds to its account's total, in cents."""
    value = one.quantity * one.price
    return value if one.side == "BUY" else -value


def fill(bootstrap: str, topic: str, count: int, *, seed: int = 1, accounts: int = ACCOUNTS) -> float:
    """Produce `count` trades, keyed by account as Kafka's clients do; return their mean size in bytes."""
    config = {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 200_000, "log_level": 2}
    producer = Producer({**config, "partitioner": "murmur2"})
    encode, size = msgspec.json.Encoder().encode, 0
    for one in trades(count, seed, accounts):
        value = encode(one)
        size += len(value)
        while True:
            try:
                producer.produce(topic, value, one.account.encode())
                break
            except BufferError:  # the queue is full: let it drain
                producer.poll(0.1)
    assert producer.flush(LONG_WAIT) == 0, f"{topic} could not be filled"
    return size / max(count, 1)


def expected(count: int, seed: int = 1) -> dict[str, list[int]]:
    """Return account -> its running totals in order, recomputed from the seed, not from Kafka."""
    totals: dict[str, list[int]] = {}
    for one in trades(count, seed):
        history = totals.setdefault(one.account, [])
        history.append((history[-1] if history else 0) + amount(one))
    return totals


@dataclass
class Outcome:
    """What an independent read_committed reader found in an output topic."""

    records: int = 0
    wrong: list[str] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)  # LogAppendTime in ms, in log order

    @property
    def rate(self) -> float:
        """Records per second over the last 80 % of the outputs: no start-up, no first compilation.

        0 if these came within one millisecond, as the outputs of one transaction may.
        """
        first = len(self.stamps) // 5
        span = self.stamps[-1] - self.stamps[first] if self.stamps else 0
        return (len(self.stamps) - first - 1) * 1000 / span if span else 0.0

    @property
    def warm(self) -> float:
        """Records per second after the first 5 s of outputs; 0 if the run was over before it was warm."""
        later = [stamp for stamp in self.stamps if stamp >= self.stamps[0] + WARM_MS]
        span = later[-1] - later[0] if later else 0
        return (len(later) - 1) * 1000 / span if span >= LEAST_MS else 0.0

    @property
    def seconds(self) -> float:
        """Seconds from the first output to the last."""
        return (self.stamps[-1] - self.stamps[0]) / 1000


def verify(
    bootstrap: str,
    topic: str,
    truth: dict[str, list[int]],
    report: Callable[[str], None] = lambda _: None,
    *,
    partitions: int = 1,
) -> Outcome:
    """Compare every output with the recomputation: each once, per account in order, every total right."""
    found, seen = Outcome(), dict.fromkeys(truth, 0)
    decode = msgspec.json.Decoder(Running).decode
    for message in records_of(bootstrap, topic, partitions):
        one = decode(message.value() or b"")
        at = seen.get(one.account, 0)
        history = truth.get(one.account, [])
        if at >= len(history) or one.total != history[at] or one.count != at + 1:
            found.wrong.append(f"{one.account}: output {at + 1} is {one}")
        seen[one.account] = at + 1
        found.records += 1
        found.stamps.append(message.timestamp()[1])
    found.stamps.sort()
    missing = sum(len(history) - seen[account] for account, history in truth.items())
    if missing:
        found.wrong.append(f"{missing} outputs are missing")
    for line in found.wrong[:3]:
        report(line)
    return found
