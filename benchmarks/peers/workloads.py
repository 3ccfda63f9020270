"""What the works of `join` and `window` have in common: their records, filling of topics, comparison of outputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Producer

from benchmarks.kafka import LONG_WAIT, records_of
from benchmarks.load import Outcome

SYMBOLS = 1_000
#: a key's outputs, in their order
Outputs = dict[str, list[tuple[Any, ...]]]


class Trade(msgspec.Struct, frozen=True, gc=False):
    """Left side of `enrich`, and the input of `candles`: about 120 bytes of JSON, keyed by symbol."""

    id: str
    account: str
    symbol: str
    side: str
    quantity: int
    price: int
    ts: int


class Item(NamedTuple):
    """A record of an input."""

    input: int
    key: str
    at: int
    value: Any


@dataclass(frozen=True)
class Workload:
    """`items(count)` has about `count` records of all inputs together, in the order of each input's topic."""

    name: str
    title: str
    inputs: tuple[str, ...]
    output: type[Any]
    items: Callable[[int], Iterator[Item]]
    truth: Callable[[Iterable[Item]], Outputs]
    #: what the contenders' job files say
    settings: dict[str, Any] = field(default_factory=dict)
    #: goals next to Kafka Streams, in long runs: at least this rate, at most this processor time
    rate: float = 1.6
    processor: float = 0.4
    contenders: tuple[str, ...] = ("statehold", "streams", "quix")
    #: outputs that a peer may lack at the end of the input
    peers_may_lack: Callable[[tuple[Any, ...]], bool] = lambda row: False


def trade_of(index: int, symbol: str, at: int, numbers: random.Random) -> Trade:
    """Return a trade of about 120 bytes of JSON; its other fields are random."""
    account = f"account-{numbers.randrange(10_000):05d}"
    side = "BUY" if numbers.random() < 0.5 else "SELL"
    return Trade(
        f"t-{index:09d}", account, symbol, side, numbers.randrange(1, 1_000), numbers.randrange(1_000, 99_999), at
    )


def fill(bootstrap: str, topics: dict[str, int], items: Iterable[Item], inputs: tuple[str, ...]) -> None:
    """Produce the records with their times; count those of each topic in `topics`."""
    config = {"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 200_000}
    producer, encode = Producer({**config, "partitioner": "murmur2"}), msgspec.json.Encoder().encode
    for item in items:
        topic, value = inputs[item.input], encode(item.value)
        while True:
            try:
                producer.produce(topic, value, item.key.encode(), timestamp=item.at)
                break
            except BufferError:  # the queue is full: let it drain
                producer.poll(0.1)
        topics[topic] = topics.get(topic, 0) + 1
    assert producer.flush(LONG_WAIT) == 0, f"{inputs} could not be filled"


def verify(bootstrap: str, topic: str, work: Workload, truth: Outputs, *, peer: bool) -> Outcome:
    """Compare every output with the recomputation: each once, those of a key in order."""
    found, seen = Outcome(), dict.fromkeys(truth, 0)
    decode, fields = msgspec.json.Decoder(work.output).decode, msgspec.structs.astuple
    for message in records_of(bootstrap, topic):
        key, value = (message.key() or b"").decode(), fields(decode(message.value() or b""))
        index, wanted = seen.get(key, 0), truth.get(key, [])
        if index >= len(wanted) or value != wanted[index]:
            expected = wanted[index] if index < len(wanted) else "nothing"
            found.wrong.append(f"{key}: output {index + 1} is {value}, expected {expected}")
        seen[key] = index + 1
        found.records += 1
        found.stamps.append(message.timestamp()[1])
    open_rows = (row for key, outputs in truth.items() for row in outputs[seen[key] :])
    missing = sum(not (peer and work.peers_may_lack(row)) for row in open_rows)
    if missing:
        found.wrong.append(f"{missing} outputs are missing")
    return found
